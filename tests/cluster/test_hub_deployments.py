"""Deploying from a hub: every node fetches the files that hold its own stage, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.agents import Fleet
from support.fake_hub import FakeHub, serve_hub
from support.hub_models import DEMO, cut_demo, hub_environment

from potluck.cluster.agent.control import ask

HUB_ID = "table/cut"
NUM_LAYERS = 12
EMBEDDING, NORM = "embedding.safetensors", "norm.safetensors"
WEIGHTS = frozenset({EMBEDDING, NORM, *(f"layer-{n:02}.safetensors" for n in range(NUM_LAYERS))})


def file_of(tensor: str) -> str:
    layer = re.match(r"model\.layers\.(\d+)\.", tensor)
    if layer is not None:
        return f"layer-{int(layer[1]):02}.safetensors"
    return EMBEDDING if "embed" in tensor else NORM


def files_of_stage(start_layer: int, end_layer: int) -> set[str]:
    """The head is tied: the last stage reads it from the embedding's bytes."""
    files = {f"layer-{layer:02}.safetensors" for layer in range(start_layer, end_layer)}
    if start_layer == 0:
        files |= {EMBEDDING}
    if end_layer == NUM_LAYERS:
        files |= {EMBEDDING, NORM}
    return files


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path) as fleet:
        yield fleet


def test_a_node_fetches_the_files_of_its_stage_alone(fleet: Fleet) -> None:
    files = cut_demo(file_of)
    assert set(files) >= WEIGHTS
    with ExitStack() as serving:
        hubs: list[FakeHub] = []
        for number in range(3):
            hub = serving.enter_context(serve_hub({HUB_ID: files}))
            hubs.append(hub)
            environ = hub_environment(fleet.directory / f"hub-{number}", hub.endpoint)
            # By their limits, so that the model is always cut in the same way.
            fleet.start(
                number,
                join=fleet.agents.get(0),
                environ=environ,
                memory_limit=f"{200 + 50 * number}M",
            ).await_up()
        fleet.await_members()
        agents = list(fleet.agents.values())
        planned = agents[0].command_line("plan", HUB_ID, "--context", "64")
        assert planned.returncode == 0, planned.stderr
        assert not any(WEIGHTS & set(hub.fetched) for hub in hubs), "a plan fetches no weights"
        deployed = agents[0].deploy(HUB_ID, context=64)
        by_node = {stage["node_id"]: stage for stage in deployed["stages"]}
        assert len(by_node) == 3
        for agent, hub in zip(agents, hubs, strict=True):
            stage = by_node[agent.node_id]
            expected = files_of_stage(stage["start_layer"], stage["end_layer"])
            assert expected < WEIGHTS
            assert WEIGHTS & set(hub.fetched) == expected
            assert len(hub.fetched) == len(set(hub.fetched)), "a file was sent twice"
            if agent is not agents[0]:  # the coordinator reads the headers of all
                others = WEIGHTS - expected
                assert not any(hub.sent_bytes[name] for name in others)
        commit = hubs[0].repositories[HUB_ID].commit
        assert deployed["model"] == f"{HUB_ID}@{commit}"
        with agents[2].client() as client:
            answer = client.completions.create(
                model=HUB_ID, prompt="The fox", max_tokens=8, temperature=0
            )
        served = [len(hub.fetched) + len(hub.header_reads) for hub in hubs]
        agents[0].ask("undeploy", name=HUB_ID)
        # Without the hub: the files of the stages are on the disks, and the headers on the first.
        for hub in hubs:
            hub.repositories.clear()
        again = agents[0].deploy(f"{HUB_ID}@{commit}", name="again", context=64)
        moved = {stage["node_id"]: stage["start_layer"] for stage in again["stages"]}
        assert moved == {node: stage["start_layer"] for node, stage in by_node.items()}
        assert served == [len(hub.fetched) + len(hub.header_reads) for hub in hubs]
    demo = fleet.agents[0].deploy("demo", context=64)
    with fleet.agents[0].client() as client:
        expected_answer = client.completions.create(
            model=demo["model_id"], prompt="The fox", max_tokens=8, temperature=0
        )
    assert answer.choices[0].text == expected_answer.choices[0].text
    assert set(DEMO) - {"model.safetensors"} <= set(hubs[2].fetched)


def test_fetching_is_told_while_it_lasts(fleet: Fleet) -> None:
    with serve_hub({HUB_ID: DEMO}) as hub:
        hub.held_after = 2**21
        agent = fleet.start(0, environ=hub_environment(fleet.directory / "hub", hub.endpoint))
        agent.await_up()
        told: list[tuple[int, int]] = []
        request = {"model": HUB_ID, "model_id": None, "context_tokens": 64, "cache_tokens": None}
        for document in ask(agent.state / "control.sock", "deploy", request):
            event = document.get("event")
            if event is not None and event["reason"] == "fetching":
                told.append((event["done_bytes"], event["total_bytes"]))
                hub.released.set()
    assert told, "no event said that it was being fetched"
    done_bytes, total_bytes = told[0]
    assert 0 < done_bytes <= 2**21
    assert total_bytes == len(DEMO["model.safetensors"])
