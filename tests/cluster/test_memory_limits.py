"""Limits that agents are under: what is placed there, what is refused, and with which numbers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.cluster.agents import AgentProcess, Document, Fleet
from support.models.sparse_models import SparseModel
from support.processes.confinement import control_group, inside

from potluck import Model
from potluck.catalog import describe_model, read_profile
from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.engines.backends import cost_of
from potluck.placement.costs import model_cost
from potluck.placement.model_counting import counting_of
from potluck.types.placement import ModelCost
from potluck.types.stage import StageSize

MIB = 2**20
CONTEXT = 256
OPTIONS = ("--context", str(CONTEXT), "--cache", str(CONTEXT), "--for", "memory", "--json")
PROMPT = "The old boat"
NUM_TOKENS = 12

WIDE = SparseModel(
    hidden_size=2048,
    intermediate_size=256,
    num_layers=6,
    num_heads=4,
    num_kv_heads=1,
    head_dim=32,
    vocab_size=2048,
    max_context_tokens=1024,
    has_tied_head=False,
    stored="BF16",
)
"""With demo's tokenizer: the embedding is 8 MiB, as is the head; a layer is half of that."""


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, with random weights."""
    directory = tmp_path_factory.mktemp("wide")
    WIDE.write(directory)
    for path in DEMO_DIRECTORY.glob("*token*.json"):
        shutil.copy(path, directory)
    file = directory / "model.safetensors"
    num_bytes = file.stat().st_size - header_bytes(directory)
    drawn = np.random.default_rng(7).standard_normal(num_bytes // 2, np.float32) * 0.05
    with file.open("r+b") as out:
        out.seek(header_bytes(directory))
        out.write(drawn.view(np.uint16)[1::2].tobytes())
    return directory


def header_bytes(model: Path) -> int:
    with (model / "model.safetensors").open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def parts_of(model: Path) -> ModelCost:
    size = StageSize(
        context_tokens=CONTEXT,
        num_blocks=CONTEXT // 16,
        max_step_tokens=CONTEXT,
        num_threads=1,
    )
    profile = read_profile(describe_model(str(model)))
    return model_cost(counting_of(profile, cost_of), size)


def ask_json(agent: AgentProcess, command: str, model: Path) -> Document:
    completed = agent.command_line(command, str(model), *OPTIONS)
    assert completed.returncode == 0, completed.stderr
    document: Document = json.loads(completed.stdout)
    return document


def test_the_ends_alone_give_the_same_text_and_read_nothing_but_their_own(
    fleet: Fleet, wide: Path
) -> None:
    cost = parts_of(wide)
    # An end fits, and no layer beside it.
    limit = max(cost.lone_embedding_bytes, cost.lone_head_bytes) + MIB
    agents = fleet.start_all(range(4), memory_limit=str(limit))
    planned = ask_json(agents[0], "plan", wide)
    deployed = ask_json(agents[0], "deploy", wide)
    ranges = [(stage["start_layer"], stage["end_layer"]) for stage in deployed["stages"]]
    assert ranges == [(0, 0), (0, 3), (3, 6), (6, 6)]

    # The plan, the deployment and what the workers say are the same numbers.
    for before, after in zip(planned["stages"], deployed["stages"], strict=True):
        read_bytes, seconds = after.pop("read_bytes"), after.pop("load_seconds")
        assert after.pop("progress") is None
        assert {name: before[name] for name in after} == after
        memory = after["memory"]
        assert after["num_bytes"] == sum(memory["weights"].values()) + sum(
            size for name, size in memory.items() if name != "weights"
        )
        own: dict[str, tuple[int, ...]] = {}
        for layer in range(after["start_layer"], after["end_layer"]):
            own |= WIDE.layer(layer)
        if after["stage"] == 0:
            own |= WIDE.embedding()
        if after["stage"] == 3:
            own |= WIDE.head()
        assert read_bytes == WIDE.stored_bytes(own) + header_bytes(wide)
        assert seconds > 0

    with agents[1].client() as client:
        answer = client.completions.create(
            model=deployed["model_id"], prompt=PROMPT, max_tokens=NUM_TOKENS, temperature=0
        )
    with Model.open(str(wide), context_tokens=CONTEXT) as model:
        generation = model.generate(PROMPT, max_tokens=NUM_TOKENS, temperature=0)
        expected = "".join(piece.text for piece in generation)
    assert answer.choices[0].text == expected != ""


def test_a_control_group_is_a_limit_for_its_agent_alone(fleet: Fleet, wide: Path) -> None:
    limit = 192 * MIB
    with control_group(
        Path(f"/sys/fs/cgroup/memory/potluck-limits-{os.getpid()}"),
        {"memory.limit_in_bytes": str(limit)},
    ) as path:
        try:
            agents = fleet.start_all([0])
            agents += fleet.start_all([1], prefix=inside(path))
            (own,) = [n for n in agents[1].cluster()["nodes"] if n["node_id"] == agents[1].node_id]
            assert own["available_reason"] == f"the control group's limit in {path}"
            assert 64 * MIB < own["units"][0]["usable_bytes"] < limit
            stages = ask_json(agents[0], "deploy", wide)["stages"]
            of_group = [each for each in stages if each["node_id"] == agents[1].node_id]
            assert all(each["num_bytes"] < limit for each in of_group)
        finally:
            for agent in fleet.agents.values():
                agent.clean_up()


def test_an_address_space_limit_is_kept(fleet: Fleet, wide: Path) -> None:
    """It holds for the worker, too, which maps more than it touches."""
    limit = ("sh", "-c", 'ulimit -v 1200000; exec "$@"', "sh")
    (agent,) = fleet.start_all([0], prefix=limit)
    (node,) = agent.cluster()["nodes"]
    assert node["available_reason"] == "the address space limit (ulimit -v)"
    (stage,) = ask_json(agent, "deploy", wide)["stages"]
    assert stage["read_bytes"] > 0
