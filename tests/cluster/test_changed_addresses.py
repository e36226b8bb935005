"""A machine gets another address while it serves, as with a new DHCP lease."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, no_end
from support.network.netns import Host, change_address, lan, require_namespaces
from support.processes.waiting import eventually

PROMPT = "The harbour at night was quiet"
NUM_TOKENS = 150

_STREAM = """
import json, sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.argv[2].encode())
request.add_header("Content-Type", "application/json")
with urllib.request.urlopen(request, timeout=60) as response:
    for line in response:
        if line.startswith(b"data: {"):
            print(json.dumps(json.loads(line[6:])["choices"][0]["text"]), flush=True)
"""


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    """Multicast, by which nodes would find one another again, does not pass between them."""
    require_namespaces()
    with lan(2, passes_multicast=False) as hosts:
        yield hosts


def stream(host: Host, agent: AgentProcess) -> subprocess.Popen[str]:
    """A client on the agent's host, which prints each part of an answer."""
    body = {
        "model": "demo",
        "prompt": PROMPT,
        "max_tokens": NUM_TOKENS,
        "temperature": 0.7,
        "seed": 5,
        "stream": True,
        "logit_bias": no_end(),
    }
    arguments = ("-c", _STREAM, f"{agent.url}/v1/completions", json.dumps(body))
    return subprocess.Popen(
        host.command(sys.executable, *arguments), stdout=subprocess.PIPE, text=True
    )


def rest_of(reader: subprocess.Popen[str]) -> str:
    with reader:
        assert reader.stdout is not None
        text = "".join(map(json.loads, reader.stdout))
    assert reader.returncode == 0
    return text


def addresses(agent: AgentProcess) -> set[str]:
    nodes: list[Document] = agent.cluster()["nodes"]
    return {node.get("address", "") for node in nodes}


def nodes_of(deployment: Document) -> set[str]:
    return {stage["node_id"] for stage in deployment["stages"]}


def test_the_first_node_is_found_at_its_new_address_and_streams_go_on(
    hosts: tuple[Host, ...], tmp_path: Path
) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(0, "--lan", host=hosts[0]).await_up()
        second = fleet.start(1, join=first, host=hosts[1]).await_up()
        fleet.await_members()
        deployed = first.deploy(context=256, cache=512)
        assert nodes_of(deployed) == {first.node_id, second.node_id}
        expected = rest_of(stream(hosts[1], second))

        reader = stream(hosts[1], second)
        assert reader.stdout is not None
        begun = "".join(json.loads(reader.stdout.readline()) for _ in range(10))
        change_address(hosts[0], "10.77.0.9")
        assert begun + rest_of(reader) == expected

        now = {"10.77.0.9:7333", "10.77.0.2:7333"}
        for agent in (first, second):
            eventually(lambda agent=agent: addresses(agent) == now, within=30)  # type: ignore[misc]
            assert nodes_of(await_ready(agent, "demo")) == {second.node_id}
        assert "other nodes reach this one at 10.77.0.9:7333 now" in first.log
        second.ask("rebalance", name="demo", is_dry_run=False)
        assert nodes_of(await_ready(first, "demo")) == {first.node_id, second.node_id}
        for host, agent in zip(hosts, (first, second), strict=True):
            assert rest_of(stream(host, agent)) == expected
        options = ("--join", "10.77.0.9", "--listen", "10.77.0.2:7440")
        fleet.start(2, *options, host=hosts[1]).await_up()
        fleet.await_members()
