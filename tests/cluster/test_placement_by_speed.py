"""Layers go where they are computed soonest: agents whose cores are throttled by control groups."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_shapes import SHAPES
from random_gguf import write_gguf
from support.cluster.agents import Document
from support.cluster.throttled_fleet import Machine, ThrottledFleet, require_groups, throttled_fleet
from support.kernels.build import not_shown
from token_stream import Ask, stream_whole

from potluck.cluster.agent.asking import RemoteError

NUM_LAYERS = SHAPES["100M"].num_layers
NUM_ROUNDS = 5
LEAST_RATIO = 0.75
"""Of tokens per second beside a slow agent to those without, on a machine where other tests run;
``benchmarks/placement.py`` shows 0.95 on a quiet one. By memory it is 0.3."""


@pytest.fixture(scope="module", autouse=True)
def _groups() -> None:
    try:
        require_groups()
    except OSError as error:
        not_shown(f"cores can't be throttled here: {error}")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "100M.gguf"
    write_gguf(SHAPES["100M"], path, "Q8_0")
    return path


@pytest.fixture
def fast_and_slow(tmp_path: Path) -> Iterator[ThrottledFleet]:
    """A fast agent that has room for the model, and a slow one that has more."""
    machines = (
        Machine(cores=0.8, core=0, memory="900M"),
        Machine(cores=0.1, core=1, memory="1800M"),
    )
    with throttled_fleet(tmp_path, machines) as fleet:
        yield fleet


def request(model: Path, name: str, **others: object) -> Document:
    return {
        "model": str(model),
        "model_id": name,
        "context_tokens": 64,
        "cache_tokens": 256,
        "rebalance": "never",
        **others,
    }


def tokens_per_second(fleet: ThrottledFleet, name: str, num_tokens: int = 24) -> float:
    ask = Ask(prompt=list(range(300, 308)), max_tokens=num_tokens, seed=1)
    times = stream_whole(fleet.port, name, ask).times
    return (len(times) - 1) / (times[-1] - times[0])


def layers_of(document: Document, fleet: ThrottledFleet) -> dict[int, int]:
    """How many layers each agent has."""
    return {
        fleet.agent_of(stage["node_id"]): stage["end_layer"] - stage["start_layer"]
        for stage in document["stages"]
    }


def test_a_fast_node_is_not_made_slower_by_a_slow_one(
    fast_and_slow: ThrottledFleet, model: Path
) -> None:
    agent = fast_and_slow.coordinator
    unit = {"node_id": agent.node_id, "unit_id": "cpu/native", "num_layers": NUM_LAYERS}
    agent.ask("deploy", **request(model, "alone", layout=[unit]))
    both = agent.ask("deploy", **request(model, "both"))
    assert layers_of(both, fast_and_slow) == {0: NUM_LAYERS}
    assert [each["node_id"] for each in both["rejections"]] == [fast_and_slow.agents[1].node_id]
    by_memory = agent.ask("deploy", **request(model, "by-memory", objective="memory"))
    assert layers_of(by_memory, fast_and_slow).keys() == {0, 1}

    rates: dict[str, list[float]] = {"alone": [], "both": []}
    for name in rates:
        tokens_per_second(fast_and_slow, name, 4)
    for _ in range(NUM_ROUNDS):
        for name, found in rates.items():
            found.append(tokens_per_second(fast_and_slow, name))
    alone, beside = (statistics.median(found) for found in rates.values())
    assert beside >= LEAST_RATIO * alone, rates
    # What it would be if it went by memory.
    assert tokens_per_second(fast_and_slow, "by-memory", 8) < 0.6 * alone


def test_what_does_not_fit_on_one_is_cut_by_speed(tmp_path: Path, model: Path) -> None:
    machines = (
        Machine(cores=0.25, core=1, memory="150M"),
        Machine(cores=0.8, core=0, memory="150M"),
    )
    with throttled_fleet(tmp_path, machines) as fleet:
        agent = fleet.coordinator
        deployed = agent.ask("deploy", **request(model, "cut"))
        layers = layers_of(deployed, fleet)
        assert layers.keys() == {0, 1}
        assert layers[1] > 1.5 * layers[0]
        # As much as fits on the faster one, and no more units than it takes.
        more = [(0, layers[0] - 1), (1, layers[1] + 1)]
        assert not any(fits(fleet, model, order) for order in (more, more[::-1]))
        tokens_per_second(fleet, "cut", 4)
        measured = statistics.median(tokens_per_second(fleet, "cut") for _ in range(3))
        predicted = deployed["prediction"]["tokens_per_second"]
        # A trial that was disturbed predicts too little. Whatever runs here later can only make the
        # measured rate lower.
        assert predicted > 0.2 * measured


def fits(fleet: ThrottledFleet, model: Path, order: list[tuple[int, int]]) -> bool:
    layout = [
        {
            "node_id": fleet.agents[number].node_id,
            "unit_id": "cpu/native",
            "num_layers": num_layers,
        }
        for number, num_layers in order
    ]
    try:
        fleet.coordinator.ask("plan", **request(model, "cut", layout=layout))
    except RemoteError:
        return False
    return True
