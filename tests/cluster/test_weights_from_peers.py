"""Models that one node has, or none: the others get what their stages read, each byte once."""

from __future__ import annotations

import shutil

import pytest
from model_shapes import Shape
from random_gguf import write_gguf
from support.cluster.agents import (
    AgentProcess,
    Fleet,
    await_ready,
    await_transfers,
    measured_cache,
    no_end,
)
from support.processes.waiting import eventually

from potluck.catalog.locate import DEMO_DIRECTORY

CONTEXT = 64
PROMPT = "Once upon a time"
SMALL = Shape(
    hidden_size=256,
    intermediate_size=768,
    num_layers=9,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=64,
)
"""Of about 8 MB in Q8_0: some chunks for each of three stages."""


def start(fleet: Fleet, number: int, *arguments: str, **environ: str) -> AgentProcess:
    """Start an agent with a store and a working directory of its own."""
    folder = fleet.directory / f"home-{number}"
    folder.mkdir(exist_ok=True)
    return fleet.start(
        number,
        *arguments,
        join=fleet.agents.get(0) if number else None,
        environ={"XDG_CACHE_HOME": measured_cache(folder / "cache"), **environ},
        folder=folder,
    )


def text_of(agent: AgentProcess, name: str) -> str:
    with agent.client() as client:
        answer = client.completions.create(
            model=name, prompt=PROMPT, max_tokens=12, temperature=0, logit_bias=no_end()
        )
    return answer.choices[0].text


def stored_bytes(fleet: Fleet, number: int) -> int:
    """What the node's store takes of the disk."""
    store = fleet.directory / f"home-{number}" / "cache" / "potluck" / "weights"
    return sum(path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["model", "model.gguf"])
def test_a_model_that_one_of_three_nodes_has(fleet: Fleet, name: str) -> None:
    """In Hugging Face layout, and in one GGUF file."""
    first = start(fleet, 0).await_up()
    path = fleet.directory / "home-0" / name
    if path.suffix == ".gguf":
        write_gguf(SMALL, path, "Q8_0")
        whole = path.stat().st_size
    else:
        shutil.copytree(DEMO_DIRECTORY, path)
        whole = sum(each.stat().st_size for each in path.iterdir())
    alone = first.deploy(f"./{name}", name="alone", context=CONTEXT)
    assert {stage["node_id"] for stage in alone["stages"]} == {first.node_id}
    expected = text_of(first, "alone")
    first.ask("undeploy", name="alone")

    agents = [first, start(fleet, 1).await_up(), start(fleet, 2).await_up()]
    fleet.await_members()
    deployed = first.deploy(f"./{name}", name="m", context=CONTEXT)
    assert {stage["node_id"] for stage in deployed["stages"]} == {a.node_id for a in agents}
    assert text_of(first, "m") == expected
    for number in (1, 2):
        assert 0 < stored_bytes(fleet, number) < whole
    takers = {agents[1].node_id, agents[2].node_id}
    transfers = await_transfers(first, "m", takers)
    assert set(transfers) == takers
    for taker, each in transfers.items():
        # Headers, which both need, may come from the other one.
        assert set(each["by_source"]) <= {first.node_id, "disk"} | takers - {taker}
        assert each["by_source"][first.node_id] > 0

    # Another node joins, and takes the place of one that is killed: its bytes come from peers.
    late = start(fleet, 3).await_up()
    fleet.agents[2].process.kill()
    fleet.agents[2].process.wait()
    again = await_ready(first, "m", within=40)
    assert text_of(first, "m") == expected
    assert agents[2].node_id not in {stage["node_id"] for stage in again["stages"]}
    if late.node_id in {stage["node_id"] for stage in again["stages"]}:
        assert stored_bytes(fleet, 3) > 0


def test_deployed_from_a_node_that_has_no_files_and_keeps_none(fleet: Fleet) -> None:
    owner = start(fleet, 0).await_up()
    shutil.copytree(DEMO_DIRECTORY, fleet.directory / "home-0" / "model")
    coordinator = start(fleet, 1, "--no-store").await_up()
    start(fleet, 2).await_up()
    fleet.await_members()
    deployed = coordinator.deploy("./model", name="m", context=CONTEXT)
    nodes = {stage["node_id"] for stage in deployed["stages"]}
    assert coordinator.node_id in nodes
    assert deployed["epoch"]["coordinator"] == coordinator.node_id
    expected = text_of(owner, "m")
    assert expected
    assert stored_bytes(fleet, 1) < 2**20, "it was to keep nothing"

    def is_shown() -> bool:
        shown = coordinator.command_line("ps").stdout
        is_known = "files: SHA-256 verified" in shown or "verification in progress" in shown
        return is_known and f"files at {coordinator.node_id}: " in shown

    eventually(is_shown, within=20, what="ps says how far the files are")

    # Whoever takes over from it needs no files of its own either.
    coordinator.process.kill()
    coordinator.process.wait()
    again = await_ready(owner, "m", within=60)
    assert again["epoch"]["coordinator"] != coordinator.node_id
    assert text_of(owner, "m") == expected
