"""Which of two nodes opens an edge, given who cannot connect to whom."""

from __future__ import annotations

from typing import cast

import pytest
from support.virtual_time.run import run_in_virtual_time

from potluck.cluster.coordinator.ways import (
    ANY_WAY,
    Reachability,
    checked_reachability,
    known_reachability,
)
from potluck.cluster.network.edges.frames import Scope
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import CheckLinks, Unreachable, decode, encode
from potluck.cluster.wire.worker_messages import Connect, Peer
from potluck.cluster.worker.stage_edges import WantedEdges
from potluck.errors import CallError, EdgeError
from potluck.placement.links import link_table
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.speed import NodeSpeeds

A, B, C = NodeId("a" * 16), NodeId("b" * 16), NodeId("c" * 16)


def test_the_sender_opens_an_edge_unless_only_the_receiver_can() -> None:
    ways = Reachability(closed=frozenset({(A, B), (B, C), (C, B)}))
    assert not ANY_WAY.is_reversed(A, B)
    assert ways.is_reversed(A, B)
    assert not ways.is_reversed(B, A)
    assert ways.silent_pairs == ((B, C),)
    for pair in ((B, C), (C, B)):
        with pytest.raises(EdgeError, match="can connect to the other") as raised:
            ways.is_reversed(*pair)
        assert pair[0] in raised.value.message
        assert pair[1] in raised.value.message


@pytest.mark.parametrize("dials_preceding", [False, True])
@pytest.mark.parametrize("awaits_following", [False, True])
def test_a_stage_awaits_and_dials_as_it_is_told(
    dials_preceding: bool, awaits_following: bool
) -> None:
    request = Connect(
        epoch=Epoch(number=1, coordinator=A),
        index=3,
        preceding=Peer(node_id=A, host="10.0.0.1", port=1),
        following=Peer(node_id=B, host="10.0.0.2", port=2),
        dials_preceding=dials_preceding,
        awaits_following=awaits_following,
    )
    scope = Scope(deployment=DeploymentId("demo"), epoch=request.epoch)
    wanted = WantedEdges.of(request, scope)
    awaited = {(hello.index, hello.is_reversed, node) for hello, node in wanted.awaited.items()}
    dialed = {(hello.index, hello.is_reversed, peer) for hello, peer in wanted.dialed.items()}
    assert awaited == {
        *([] if dials_preceding else [(3, False, A)]),
        *([(4, True, B)] if awaits_following else []),
    }
    assert dialed == {
        *([(3, True, request.preceding)] if dials_preceding else []),
        *([] if awaits_following else [(4, False, request.following)]),
    }


def test_what_a_busy_node_reports_counts() -> None:
    """With all cores starting workers, agents have taken more than a second to answer."""

    class BusyMembership:
        async def call(
            self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float
        ) -> bytes:
            if timeout_seconds < 3 or node_id == C:
                raise CallError("no answer in time")
            return encode(NodeSpeeds(node_id=node_id, unreachable=(C,)))

    membership = cast("Membership", BusyMembership())
    known = run_in_virtual_time(known_reachability(membership, [A, B, C]))
    assert known.closed == {(A, C), (B, C)}


def test_nodes_try_to_connect_and_one_that_does_not_answer_counts_for_nothing() -> None:
    class TryingMembership:
        async def call(
            self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float
        ) -> bytes:
            assert method == "link.check"
            nodes = decode(payload, CheckLinks).nodes
            assert node_id not in nodes
            if node_id == C:
                raise CallError("no answer in time")
            return encode(Unreachable(nodes=tuple(each for each in nodes if each == C)))

    membership = cast("Membership", TryingMembership())
    found = run_in_virtual_time(checked_reachability(membership, [A, B, C]))
    assert found.closed == {(A, C), (B, C)}
    assert run_in_virtual_time(checked_reachability(membership, [A])) == ANY_WAY


def test_plans_avoid_neighbours_that_cannot_talk() -> None:
    speeds = [
        NodeSpeeds(node_id=A, unreachable=(B, C)),
        NodeSpeeds(node_id=B, unreachable=(A,)),
    ]
    links = link_table(speeds, {})
    silent, one_way = links.link(A, B), links.link(A, C)
    assert silent.latency_seconds > 1000
    assert links.link(B, A) == silent
    assert one_way == links.network
