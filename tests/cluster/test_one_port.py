"""Real agents on hosts between which only the one port is open, or only in one direction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import pytest
from model_shapes import Shape
from random_hugging_face import write_hugging_face
from support.cluster.agents import AgentProcess, Document, Fleet, await_transfers, measured_cache
from support.network.netns import Host, require_namespaces
from support.network.relay import Link, Relay, relayed_lan
from support.processes.waiting import eventually

from potluck import Model

PROMPT = "The harbour at night was quiet"
PORT = 7333
SMALL = Shape(
    hidden_size=256,
    intermediate_size=768,
    num_layers=6,
    num_heads=4,
    num_key_value_heads=2,
    head_dim=64,
)
"""Some chunks of weights for each of three stages."""

_POST = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lan:
    """Hosts behind a relay, with an agent on each."""

    relay: Relay
    fleet: Fleet
    agents: list[AgentProcess]


@pytest.fixture(scope="module")
def lan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """Three hosts on which only one port is open."""
    require_namespaces()
    with relayed_lan(3) as relay, Fleet(tmp_path_factory.mktemp("port")) as fleet:
        relay.set_all(Link(open_port=PORT))
        yield Lan(relay=relay, fleet=fleet, agents=start(fleet, relay))


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lan]:
    """Three hosts: the first two cannot connect to the last, and their agents have found out."""
    require_namespaces()
    with relayed_lan(3) as relay, Fleet(tmp_path_factory.mktemp("behind")) as fleet:
        for other in relay.hosts[:2]:
            relay.set_one_way(other, relay.hosts[2], Link(open_port=0))
        agents = start(fleet, relay)
        for agent in agents[:2]:
            eventually(
                lambda agent=agent: "this node cannot connect to node" in agent.log,  # type: ignore[misc]
                within=100,
                what="the others find that they cannot connect to it",
            )
        yield Lan(relay=relay, fleet=fleet, agents=agents)


def complete(host: Host, agent: AgentProcess, name: str = "demo") -> str:
    body = {"model": name, "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
    answer = subprocess.run(
        host.command(sys.executable, "-c", _POST, f"{agent.url}/v1/completions", json.dumps(body)),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    ).stdout
    document: Document = json.loads(answer)
    text: str = document["choices"][0]["text"]
    return text


def alone(name: str = "demo") -> str:
    with Model.open(name, context_tokens=256, num_threads=1) as model:
        return model.generate(PROMPT, max_tokens=24, temperature=0).result().text


def start(fleet: Fleet, relay: Relay) -> list[AgentProcess]:
    """Start agents with a store and a working directory each."""

    def begin(number: int, *arguments: str) -> AgentProcess:
        folder = home(fleet, number)
        folder.mkdir()
        return fleet.start(
            number,
            *arguments,
            join=fleet.agents.get(0),
            environ={"XDG_CACHE_HOME": measured_cache(folder / "cache")},
            folder=folder,
            host=relay.hosts[number],
        ).await_up()

    first = begin(0, "--lan")
    assert first.address.endswith(f":{PORT}")
    others = [begin(number) for number in (1, 2)]
    fleet.await_members()
    return [first, *others]


def home(fleet: Fleet, number: int) -> Path:
    return fleet.directory / f"home-{number}"


def stored_bytes(fleet: Fleet, number: int) -> int:
    store = home(fleet, number) / "cache" / "potluck" / "weights"
    return sum(each.stat().st_blocks * 512 for each in store.glob("*.data"))


def test_nothing_but_the_one_port_has_to_be_open(lan: Lan) -> None:
    hosts, agents = lan.relay.hosts, lan.agents
    deployed = agents[1].deploy(context=256, cache=256)
    assert len({stage["node_id"] for stage in deployed["stages"]}) == 3
    assert complete(hosts[2], agents[2]) == alone()
    for one, other in permutations(hosts, 2):
        assert lan.relay.counts(one, other).cut == 0, "somebody tried another port"


@pytest.mark.parametrize("coordinator", [0, 2])
def test_a_node_that_can_only_dial_out_takes_part(behind: Lan, coordinator: int) -> None:
    """As behind address translation; ``coordinator`` coordinates."""
    agents = behind.agents
    deployed = agents[coordinator].deploy(context=256, cache=256)
    assert len({stage["node_id"] for stage in deployed["stages"]}) == 3
    expected = alone()
    for host, agent in zip(behind.relay.hosts, agents, strict=True):
        assert complete(host, agent) == expected
    agents[coordinator].ask("undeploy", name="demo")


@pytest.mark.parametrize("coordinator", [0, 2])
def test_a_node_that_can_only_dial_out_passes_its_model_on(behind: Lan, coordinator: int) -> None:
    """Only it has the files; the others, of which the first may coordinate, have none."""
    fleet, agents = behind.fleet, behind.agents
    model = home(fleet, 2) / f"model-{coordinator}"
    write_hugging_face(replace(SMALL, num_layers=6 + coordinator), model)  # each time another one
    held = [stored_bytes(fleet, number) for number in (0, 1)]
    deployed = agents[coordinator].deploy(f"./{model.name}", name="m", context=256, cache=256)
    assert {stage["node_id"] for stage in deployed["stages"]} == {a.node_id for a in agents}
    transfers = await_transfers(agents[coordinator], "m", {agents[1].node_id})
    owner = agents[2].node_id
    assert any(owner in each["by_source"] for each in transfers.values())
    takers = {agents[0].node_id, agents[1].node_id}
    for node, each in transfers.items():  # what both need, either passes on
        assert set(each["by_source"]) <= ({owner, "disk"} | takers) - {node}
    for number in (0, 1):
        assert stored_bytes(fleet, number) - held[number] > 2**20
    expected = alone(str(model))
    for host, agent in zip(behind.relay.hosts, agents, strict=True):
        assert complete(host, agent, "m") == expected
    agents[coordinator].ask("undeploy", name="m")
