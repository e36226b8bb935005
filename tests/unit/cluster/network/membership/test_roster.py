from __future__ import annotations

from potluck.cluster.network.membership.messages import NodeSession, SessionId
from potluck.cluster.network.membership.roster import (
    Change,
    Incompatible,
    Joined,
    Roster,
    SessionEnded,
)
from potluck.types.cluster import NodeId

ME, A, B = (NodeId(digit * 16) for digit in "0ab")
FIRST, SECOND = SessionId("s1"), SessionId("s2")


def seen(node: NodeId, session: SessionId, version: int = 1) -> NodeSession:
    return NodeSession(node_id=node, session_id=session, wire_version=version)


def play(*events: tuple[str, NodeSession]) -> tuple[Roster, list[Change]]:
    """The roster after tokens came (+) and went (-), and all that changed on the way."""
    roster = Roster(own_node_id=ME, wire_version=1)
    changes: list[Change] = []
    for kind, node_session in events:
        step = roster.with_token if kind == "+" else roster.without_token
        roster, new = step(node_session)
        changes += new
    return roster, changes


def joined(node: NodeId, session: SessionId) -> Joined:
    return Joined(node_id=node, session_id=session)


def left(node: NodeId, session: SessionId) -> SessionEnded:
    return SessionEnded(node_id=node, session_id=session)


def test_a_node_joins_once_and_leaves_once() -> None:
    a = seen(A, FIRST)
    roster, changes = play(("+", a), ("+", a))
    assert changes == [joined(A, FIRST)]
    assert roster.session_of(A) == FIRST
    roster, changes = play(("+", a), ("-", a), ("-", a))
    assert changes == [joined(A, FIRST), left(A, FIRST)]
    assert roster.session_of(A) is None
    assert not roster.sessions


def test_nodes_are_told_apart() -> None:
    roster, changes = play(("+", seen(A, FIRST)), ("+", seen(B, FIRST)), ("-", seen(A, FIRST)))
    assert changes == [joined(A, FIRST), joined(B, FIRST), left(A, FIRST)]
    assert set(roster.sessions) == {B}


def test_a_restart_is_a_leave_and_a_join_once_the_old_token_is_gone() -> None:
    events = (("+", seen(A, FIRST)), ("+", seen(A, SECOND)), ("-", seen(A, FIRST)))
    roster, changes = play(*events)
    assert changes == [joined(A, FIRST), left(A, FIRST), joined(A, SECOND)]
    assert roster.session_of(A) == SECOND
    assert not play(*events, ("-", seen(A, SECOND)))[0].sessions


def test_a_second_session_changes_nothing_while_the_first_is_there() -> None:
    """It is of a copied state directory, and will leave."""
    roster, changes = play(("+", seen(A, FIRST)), ("+", seen(A, SECOND)), ("-", seen(A, SECOND)))
    assert changes == [joined(A, FIRST)]
    assert roster.session_of(A) == FIRST


def test_other_versions_are_reported_and_no_members() -> None:
    newer = seen(A, FIRST, version=2)
    roster, changes = play(("+", newer), ("+", newer))
    assert changes == [Incompatible(node_id=A, wire_version=2)]
    assert roster.session_of(A) is None
    assert roster.incompatible == {newer}
    roster, changes = play(("+", newer), ("-", newer), ("+", seen(A, SECOND)))
    assert changes[1:] == [joined(A, SECOND)]
    assert not roster.incompatible


def test_ones_own_token_is_no_event() -> None:
    mine = seen(ME, FIRST)
    assert play(("+", mine), ("-", mine))[1] == []
    assert play(("+", seen(ME, FIRST, version=2)))[1] == []


def test_what_was_never_seen_cannot_leave() -> None:
    assert play(("-", seen(A, FIRST)), ("-", seen(B, FIRST, version=3)))[1] == []
    assert play(("+", seen(A, FIRST)), ("-", seen(A, FIRST, version=3)))[1] == [joined(A, FIRST)]
