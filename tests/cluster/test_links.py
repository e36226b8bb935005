"""Links between members in processes of their own: figures, cuts, what they cost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.cluster.agents import Fleet
from support.cluster.members import LinkMember, opened
from support.network.netns import Host, require_namespaces
from support.network.relay import CUT, PERFECT, Link, Relay, relayed_lan
from support.processes.waiting import done_within, eventually, until

from potluck.cluster.network.links.schedule import SHARE, WINDOW_SECONDS
from potluck.cluster.network.membership import (
    Address,
    MembershipConfig,
    parse_address,
)
from potluck.cluster.network.trust.authority import cluster_id, derive_authority, issue_credentials
from potluck.cluster.network.trust.pem_files import write_pem_files
from potluck.cluster.network.trust.secret import parse_secret
from potluck.cluster.wire.calls import AskSpeeds
from potluck.cluster.wire.methods import SPEEDS
from potluck.types.cluster import NodeId
from potluck.types.speed import LinkSpeed

OVERHEAD_SECONDS = 0.0005
"""Of a frame's way through the relay, TLS and two processes that wake up."""

FRAME_SHARE = 0.955
"""Of what passes on Ethernet, the part that is an edge's: TCP, IP and TLS have the rest."""


NUM_TRIES = 3
"""Of measuring a link: where cores are busy, the relay itself is slower than what it plays."""


@pytest.fixture
def relay() -> Iterator[Relay]:
    require_namespaces()
    with relayed_lan(2) as relay:
        yield relay


@contextmanager
def members(hosts: tuple[Host, ...]) -> Iterator[list[LinkMember]]:
    with ExitStack() as stack:
        found: list[LinkMember] = []
        for number, host in enumerate(hosts):
            connect = [found[0].address] if found else []
            member = LinkMember(number, *connect, host=host.ip, prefix=host.command())
            found.append(stack.enter_context(member))
        yield found


@pytest.mark.timing
def test_members_on_loopback_measure_each_other_within_seconds() -> None:
    for _ in range(NUM_TRIES):
        with LinkMember(1) as one, LinkMember(2, one.address) as other:
            speeds = one.speed_to(other), other.speed_to(one)
            assert one.leave() == other.leave() == 0
        latency = max(speed.latency_seconds for speed in speeds)
        rate = min(speed.bytes_per_second for speed in speeds)
        if latency < 0.002 and rate > 20e6:
            break
    assert latency < 0.002
    assert rate > 20e6


@pytest.mark.timing
@pytest.mark.parametrize("delay", [0.005, 0.02])
def test_latencies_are_those_of_the_network(relay: Relay, delay: float) -> None:
    relay.set_all(Link(delay_seconds=delay))
    most = 1.1 * delay + OVERHEAD_SECONDS
    for _ in range(NUM_TRIES):
        with members(relay.hosts) as (one, other):
            speeds = one.speed_to(other), other.speed_to(one)
        assert min(speed.latency_seconds for speed in speeds) >= delay
        slowest = max(speed.latency_seconds for speed in speeds)
        if slowest < most:
            break
    assert slowest < most


@pytest.mark.timing
@pytest.mark.parametrize(("rate", "delay"), [(10e6, 0.002), (1e6, 0.0), (100e3, 0.0)])
def test_rates_are_those_of_the_network(relay: Relay, rate: float, delay: float) -> None:
    one_way, other_way = relay.hosts
    relay.set_one_way(one_way, other_way, Link(delay_seconds=delay, bytes_per_second=rate))
    relay.set_one_way(other_way, one_way, Link(delay_seconds=delay, bytes_per_second=2 * rate))
    least, most = 0.85 * FRAME_SHARE * rate, 1.05 * rate
    for _ in range(NUM_TRIES):
        with members(relay.hosts) as (one, other):
            there, back = one.speed_to(other, within=20), other.speed_to(one, within=20)
        rates = (there.bytes_per_second, back.bytes_per_second / 2)
        assert max(rates) < most
        if min(rates) > least:
            break
    assert min(rates) > least


@pytest.mark.parametrize("rate", [10e6, 1e6, 100e3])
def test_a_minute_has_one_percent_of_measurements_at_most(relay: Relay, rate: float) -> None:
    relay.set_all(Link(bytes_per_second=rate))
    one_way, other_way = relay.hosts
    with members(relay.hosts) as (one, other), done_within(5):
        one.speed_to(other, within=20)
        other.speed_to(one, within=20)
        counts = [relay.counts(one_way, other_way), relay.counts(other_way, one_way)]
    # Frames of Ethernet have 1,514 bytes at most; half of them are small, and many Zenoh's.
    for each in counts:
        assert each.forwarded * 1514 < SHARE * WINDOW_SECONDS * rate + 200 * 1514


def test_a_link_that_is_cut_while_it_is_measured_leaves_nothing_behind(relay: Relay) -> None:
    # Over two seconds, of which it is cut in the first.
    relay.set_all(Link(delay_seconds=0.12))
    with members(relay.hosts) as (one, other):
        eventually(lambda: "measure-link" in one.costs()["threads"], within=20)
        relay.set_all(CUT)
        for member in (one, other):
            eventually(
                lambda member=member: "measure-link" not in member.costs()["threads"],  # type: ignore[misc]
                within=20,
            )
            assert member.speeds() == {}
        relay.set_all(PERFECT)
        for speed in (one.speed_to(other, within=20), other.speed_to(one, within=20)):
            assert speed.latency_seconds < 0.05
        assert one.leave() == other.leave() == 0


def test_agents_tell_whoever_plans_how_fast_their_links_are(tmp_path: Path) -> None:
    with Fleet(tmp_path) as fleet:
        agents = fleet.start_all(range(2), has_http=False)
        speeds = asyncio.run(links_of(fleet, [agent.node_id for agent in agents], tmp_path))
    for agent, other in ((agents[0], agents[1]), (agents[1], agents[0])):
        (speed,) = (each for each in speeds[NodeId(agent.node_id)] if each.node_id == other.node_id)
        assert 0 < speed.latency_seconds < 0.01
        assert 10e6 < speed.bytes_per_second < 1e11


async def links_of(
    fleet: Fleet, nodes: list[str], directory: Path
) -> dict[NodeId, tuple[LinkSpeed, ...]]:
    """What ``node.speeds`` of each node says, to a member that joins for it."""
    secret = parse_secret(fleet.secret)
    me = NodeId("f" * 16)
    paths = write_pem_files(
        issue_credentials(derive_authority(secret), me, ["127.0.0.1"]), directory / "pem"
    )
    config = MembershipConfig(
        node_id=me,
        cluster_id=cluster_id(secret),
        listen=Address(host="127.0.0.1", port=0),
        connect=(parse_address(next(iter(fleet.agents.values())).address),),
        pem=paths,
    )
    found = {}
    async with opened(config) as membership:
        request = AskSpeeds(model_shapes=(), may_wait=True)
        await until(lambda: membership.nodes() == frozenset(nodes), what="it sees all nodes")
        for node in map(NodeId, nodes):
            found[node] = (await SPEEDS.call(membership, node, request)).links
    return found
