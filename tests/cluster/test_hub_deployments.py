"""Deploying from a hub: one node fetches each part of the files, and passes it on."""

from __future__ import annotations

import hashlib
import re

from support.cluster.agents import AgentProcess, Fleet, await_transfers, measured_cache
from support.models.hub_models import DEMO, cut_demo, hub_environment
from support.network.fake_hub import Repository, serve_hub
from support.processes.waiting import eventually

from potluck.cluster.agent.asking import ask

HUB_ID = "table/cut"
NUM_LAYERS = 12
EMBEDDING, NORM = "embedding.safetensors", "norm.safetensors"
WEIGHTS = frozenset({EMBEDDING, NORM, *(f"layer-{n:02}.safetensors" for n in range(NUM_LAYERS))})


def file_of(tensor: str) -> str:
    layer = re.match(r"model\.layers\.(\d+)\.", tensor)
    if layer is not None:
        return f"layer-{int(layer[1]):02}.safetensors"
    return EMBEDDING if "embed" in tensor else NORM


def test_nothing_crosses_the_uplink_twice(fleet: Fleet) -> None:
    files = cut_demo(file_of)
    assert set(files) >= WEIGHTS
    with serve_hub({HUB_ID: files}) as hub:
        for number in range(3):
            folder = fleet.directory / f"hub-{number}"
            # The last one does not reach the hub. By their limits, so that the model is always cut
            # in the same way.
            endpoint = hub.endpoint if number < 2 else "http://127.0.0.1:9"
            environ = hub_environment(
                folder, endpoint, XDG_CACHE_HOME=measured_cache(folder / "cache")
            )
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
        of_plan = sum(hub.sent_bytes[name] for name in WEIGHTS)
        assert of_plan <= sum(min(2**20, len(files[name])) for name in WEIGHTS), "headers alone"
        deployed = agents[0].deploy(HUB_ID, context=64)
        by_node = {stage["node_id"]: stage for stage in deployed["stages"]}
        assert set(by_node) == {agent.node_id for agent in agents}
        for name in WEIGHTS:
            assert hub.sent_bytes[name] == len(files[name]), f"{name} came not once"
        whole = sum(len(files[name]) for name in WEIGHTS)
        transfers = await_transfers(agents[0], HUB_ID, {agents[2].node_id})
        assert sum(each["by_source"].get("hub", 0) for each in transfers.values()) <= whole
        last = transfers[agents[2].node_id]["by_source"]
        assert last.get("hub", 0) == 0
        assert sum(last.values()) > 0
        eventually(
            lambda: verification(agents[0]) == "verified", within=10, what="the files are verified"
        )
        commit = hub.repositories[HUB_ID].commit
        assert deployed["model"] == f"{HUB_ID}@{commit}"
        with agents[1].client() as client:
            answer = client.completions.create(
                model=HUB_ID, prompt="The fox", max_tokens=8, temperature=0
            )
        agents[0].ask("undeploy", name=HUB_ID)
        # Without the hub: everything is on the disks.
        hub.repositories.clear()
        again = agents[0].deploy(f"{HUB_ID}@{commit}", name="again", context=64)
        moved = {stage["node_id"]: stage["start_layer"] for stage in again["stages"]}
        assert moved == {node: stage["start_layer"] for node, stage in by_node.items()}
    demo = fleet.agents[0].deploy("demo", context=64)
    with fleet.agents[0].client() as client:
        expected_answer = client.completions.create(
            model=demo["model_id"], prompt="The fox", max_tokens=8, temperature=0
        )
    assert answer.choices[0].text == expected_answer.choices[0].text


def test_wrong_bytes_of_the_hub_end_the_deployment(fleet: Fleet) -> None:
    weights = DEMO["model.safetensors"]
    wrong = weights[:-1] + bytes([weights[-1] ^ 1])
    repository = Repository(
        files={**DEMO, "model.safetensors": wrong}, listed={"model.safetensors": weights}
    )
    with serve_hub({HUB_ID: repository}) as hub:
        for number in range(2):
            folder = fleet.directory / f"hub-{number}"
            environ = hub_environment(
                folder, hub.endpoint, XDG_CACHE_HOME=measured_cache(folder / "cache")
            )
            fleet.start(number, join=fleet.agents.get(0), environ=environ).await_up()
        fleet.await_members()
        first = fleet.agents[0]
        deployed = first.deploy(HUB_ID, context=64)
        assert len(deployed["stages"]) == 2
        eventually(lambda: first.deployment(HUB_ID) is None, within=20, what="it was undeployed")
    assert "does not match the announced" not in fleet.agents[1].log
    (line,) = [each for each in first.log.splitlines() if "was undeployed" in each]
    assert "model.safetensors of table/cut: what was fetched of it does not match" in line
    digest = hashlib.sha256(weights).hexdigest()
    for number in range(2):
        store = fleet.directory / f"hub-{number}" / "cache" / "potluck" / "weights"
        assert not any(store.rglob(f"{digest}*")), "wrong bytes were kept"


def verification(agent: AgentProcess) -> str | None:
    """What is known of the files of the deployment."""
    deployment = agent.deployment(HUB_ID)
    return None if deployment is None else deployment["verification"]


def test_fetching_is_told_while_it_lasts(fleet: Fleet) -> None:
    with serve_hub({HUB_ID: DEMO}) as hub:
        hub.held_after = 2**21
        agent = fleet.start(0, environ=hub_environment(fleet.directory / "hub", hub.endpoint))
        agent.await_up()
        updates: list[tuple[int, int]] = []
        request = {"model": HUB_ID, "model_id": None, "context_tokens": 64, "cache_tokens": None}
        for document in ask(agent.state / "control.sock", "deploy", request):
            event = document.get("event")
            if event is not None and event["reason"] == "fetching":
                updates.append((event["done_bytes"], event["total_bytes"]))
                hub.released.set()
    assert updates, "no event said that it was being fetched"
    done_bytes, total_bytes = updates[0]
    assert 0 < done_bytes <= 2**21
    assert total_bytes == len(DEMO["model.safetensors"])
