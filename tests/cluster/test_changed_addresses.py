"""A machine gets another address while it serves, as with a new DHCP lease."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cluster.agents import AgentProcess, Document, Fleet, await_ready, nodes_of
from support.cluster.client_streams import Stream
from support.network.netns import Host, change_address, lan, require_namespaces
from support.processes.waiting import eventually

NUM_TOKENS = 150

Ask = Callable[[Host, AgentProcess], Stream]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, ...]]:
    """Multicast, by which nodes would find one another again, does not pass between them."""
    require_namespaces()
    with lan(2, passes_multicast=False) as hosts:
        yield hosts


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Ask for the same sampled text each time, at an agent from its own host."""
    with contextlib.ExitStack() as opened:

        def start(host: Host, agent: AgentProcess) -> Stream:
            stream = Stream(host, agent, NUM_TOKENS, temperature=0.7, seed=5)
            opened.callback(stream.close)
            return stream

        yield start


def addresses(agent: AgentProcess) -> set[str]:
    nodes: list[Document] = agent.cluster()["nodes"]
    return {node.get("address", "") for node in nodes}


def test_the_first_node_is_found_at_its_new_address_and_streams_go_on(
    hosts: tuple[Host, ...], ask: Ask, tmp_path: Path
) -> None:
    with Fleet(tmp_path) as fleet:
        first = fleet.start(0, "--lan", host=hosts[0]).await_up()
        second = fleet.start(1, join=first, host=hosts[1]).await_up()
        fleet.await_members()
        deployed = first.deploy(context=256, cache=512)
        assert nodes_of(deployed) == {first.node_id, second.node_id}
        expected = ask(hosts[1], second).complete(within=60)

        stream = ask(hosts[1], second)
        eventually(lambda: len(stream.arrivals) >= 10, within=20)
        change_address(hosts[0], "10.77.0.9")
        assert stream.complete(within=60) == expected

        now = {"10.77.0.9:7333", "10.77.0.2:7333"}
        for agent in (first, second):
            eventually(lambda agent=agent: addresses(agent) == now, within=30)  # type: ignore[misc]
            assert nodes_of(await_ready(agent, "demo")) == {second.node_id}
        assert "other nodes reach this one at 10.77.0.9:7333 now" in first.log
        second.ask("rebalance", name="demo", is_dry_run=False)
        assert nodes_of(await_ready(first, "demo")) == {first.node_id, second.node_id}
        for host, agent in zip(hosts, (first, second), strict=True):
            assert ask(host, agent).complete(within=60) == expected
        options = ("--join", "10.77.0.9", "--listen", "10.77.0.2:7440")
        fleet.start(2, *options, host=hosts[1]).await_up()
        fleet.await_members()
