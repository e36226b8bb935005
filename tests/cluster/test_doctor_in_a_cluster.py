"""What agents find out about each other for ``potluck doctor``: clocks, ports, multicast."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
from support.cluster.agents import AgentProcess, Fleet
from support.cluster.members import make_config, node_id, opened
from support.network.netns import Host, lan, require_namespaces
from support.processes.waiting import until
from support.schemas import validate_document

from potluck.cluster.agent.diagnosis import connect_back, diagnose
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import CheckConnection, Clock, ConnectionCheck, decode, encode
from potluck.cluster.wire.methods import CLOCK, REACH
from potluck.errors import CallError
from potluck.probe.doctor.case import Cluster, Peer
from potluck.types.cluster import NodeId

AHEAD_SECONDS = 100.0
AHEAD = (
    sys.executable,
    "-c",
    f"import time; now = time.time; time.time = lambda: now() + {AHEAD_SECONDS}; "
    "from potluck.cli.main import main; main()",
)
"""Potluck on a machine whose clock is ahead."""


def ask_doctor(agent: AgentProcess) -> dict[str, Peer]:
    """By node."""
    cluster = msgspec.convert(agent.ask("doctor")["cluster"], Cluster)
    assert cluster.node_id == agent.node_id
    assert cluster.address == agent.address
    return {peer.node_id: peer for peer in cluster.peers}


def start_two(fleet: Fleet, hosts: Sequence[Host]) -> list[AgentProcess]:
    """The first joins the second, so that its own control port needs no connection to be up."""
    second = fleet.start(1, "--lan", host=hosts[1]).await_up()
    first = fleet.start(0, join=second, host=hosts[0]).await_up()
    fleet.await_members()
    return [first, second]


def shut(host: Host, *which: str) -> None:
    """Have a host refuse to send what a firewall on the way would refuse to pass."""
    command = host.command("ip", "rule", "add", "priority", "1", *which, "unreachable")
    subprocess.run(command, check=True, capture_output=True, timeout=20)


def test_agents_on_loopback_and_a_clock_that_is_ahead(fleet: Fleet) -> None:
    first = fleet.start(0, has_http=False).await_up()
    assert ask_doctor(first) == {}
    second = fleet.start(1, join=first, has_http=False, command=AHEAD).await_up()
    fleet.await_members()
    seen, back = ask_doctor(first)[second.node_id], ask_doctor(second)[first.node_id]
    for peer, skew in ((seen, AHEAD_SECONDS), (back, -AHEAD_SECONDS)):
        assert peer.problem == peer.port_problem == ""
        assert peer.is_heard is None
        assert peer.skew_seconds is not None
        assert peer.uncertainty_seconds is not None
        assert 0 < peer.uncertainty_seconds < 1
        assert abs(peer.skew_seconds - skew) <= peer.uncertainty_seconds + 0.01
    completed = first.command_line("doctor", "--json")
    document = json.loads(completed.stdout)
    validate_document(document)
    assert document["is_cluster_checked"]
    assert "clock" in [finding["check"] for finding in document["findings"]]
    for agent in (first, second):
        assert "refused" not in agent.log


def test_a_sound_network(fleet: Fleet) -> None:
    require_namespaces()
    with lan(2) as hosts:
        first, second = start_two(fleet, hosts)
        for agent, other in ((first, second), (second, first)):
            peer = ask_doctor(agent)[other.node_id]
            assert (peer.port_problem, peer.is_reached, peer.is_heard) == ("", True, True)
            assert abs(peer.skew_seconds or 0.0) < 1


def test_a_switch_that_passes_no_multicast(fleet: Fleet) -> None:
    require_namespaces()
    with lan(2, passes_multicast=False) as hosts:
        first, second = start_two(fleet, hosts)
        peer = ask_doctor(first)[second.node_id]
        assert (peer.port_problem, peer.is_reached, peer.is_heard) == ("", True, False)


def test_ports_that_cannot_be_reached(fleet: Fleet) -> None:
    require_namespaces()
    with lan(2) as hosts:
        first, second = start_two(fleet, hosts)
        shut(hosts[1], "ipproto", "tcp", "dport", "7333")
        peer = ask_doctor(first)[second.node_id]
        assert (peer.port_problem, peer.is_reached) == ("network is unreachable", True)
        back = ask_doctor(second)[first.node_id]
        assert back.port_problem == ""
        completed = first.command_line("doctor")
        assert (
            f"note: node {second.node_id} cannot connect to this node's address "
            f"{first.address} (network is unreachable): all connections between them are opened "
            "from here\n"
        ) in completed.stdout


@contextlib.asynccontextmanager
async def members(methods: MethodTable) -> AsyncIterator[tuple[Membership, Membership]]:
    """Two in this process; the second answers ``methods``."""
    async with opened(make_config(0)) as first:
        config = make_config(1, first.address)
        async with opened(config, methods=methods) as second:
            await until(first.nodes)
            yield first, second


def test_a_node_that_does_not_know_the_calls_is_told_of(tmp_path: Path) -> None:
    async def run() -> Cluster:
        async with members(MethodTable()) as (first, _):
            return await diagnose(first)

    (peer,) = asyncio.run(run()).peers
    assert peer.node_id == node_id(1)
    assert "does not know the method 'node.clock'" in peer.problem
    assert peer.port_problem is None


def test_a_connection_is_tried_to_the_caller_and_to_nobody_else() -> None:
    """Whatever a member asks for, it learns of ports of the host that it calls from."""
    tried: list[ConnectionCheck] = []
    methods = MethodTable()

    async def on_clock(_: None) -> Clock:
        return Clock(seconds=0.0)

    CLOCK.serve(methods, on_clock)

    async def run() -> None:
        async with members(methods) as (first, second):

            async def on_reach(caller: NodeId, request: CheckConnection) -> ConnectionCheck:
                assert caller == first.node_id
                assert second.peer_host(caller) == "127.0.0.1"
                tried.append(await connect_back(second, caller, request))
                return tried[-1]

            REACH.serve_for_caller(methods, on_reach)
            with socket.socket() as closed:
                closed.bind(("127.0.0.1", 0))
                request = CheckConnection(port=first.address.port)
                await REACH.call(first, second.node_id, request)
                request = CheckConnection(port=closed.getsockname()[1])
                await REACH.call(first, second.node_id, request)
            stranger = node_id(7)
            assert second.peer_host(stranger) is None
            with pytest.raises(CallError, match="not connected"):
                await connect_back(second, stranger, request)
            with pytest.raises(CallError, match="malformed"):
                decode(encode({"port": 70_000}), CheckConnection)

    asyncio.run(run())
    assert tried == [
        ConnectionCheck(problem=""),
        ConnectionCheck(problem="nothing is listening there"),
    ]
