"""What is told of nodes and their units."""

from __future__ import annotations

from support.cluster.node_reports import node_report

from potluck.cluster.agent.history import NodeHistory
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import EventKind
from potluck.types.node import NodeReport, UnitReport
from potluck.types.unit import Role

NODE = NodeId("00000000000000aa")


def report(role: Role, reason: str = "") -> NodeReport:
    unit = UnitReport(
        unit_id=UnitId("gpu/x"),
        backend="x",
        description="a GPU",
        usable_bytes=0,
        is_shared=False,
        num_threads=1,
        max_threads=1,
        role=role,
        reason=reason,
    )
    return node_report(NODE, unit, name="desk")


def test_a_node_that_says_farewell_has_left_and_any_other_is_lost() -> None:
    history = NodeHistory()
    assert history.joined(NODE).kind is EventKind.JOINED
    lost = history.left(NODE)
    assert lost is not None
    assert lost.kind is EventKind.LOST
    history.joined(NODE)
    history.farewell(NODE)
    left = history.left(NODE)
    assert left is not None
    assert left.kind is EventKind.LEFT
    history.joined(NODE)  # an earlier farewell counts no more
    again = history.left(NODE)
    assert again is not None
    assert again.kind is EventKind.LOST


def test_a_node_that_was_removed_is_not_lost_as_well() -> None:
    history = NodeHistory()
    history.joined(NODE)
    assert history.removed(NODE).kind is EventKind.REMOVED
    assert history.left(NODE) is None


def test_units_are_told_when_they_change() -> None:
    history = NodeHistory()
    assert history.reported(report(Role.SERVES)) == ()
    assert history.reported(report(Role.SERVES)) == ()
    (out,) = history.reported(report(Role.OUT, "it hung."))
    assert (out.kind, out.details["reason"]) == (EventKind.UNIT_OUT, "it hung.")
    assert out.message == "gpu/x on desk is out: it hung."
    assert history.reported(report(Role.OUT, "it hung.")) == ()
    (back,) = history.reported(report(Role.SERVES))
    assert back.kind is EventKind.UNIT_BACK


def test_a_unit_that_is_out_from_the_beginning_is_no_news() -> None:
    assert NodeHistory().reported(report(Role.OUT, "no driver")) == ()


def test_a_unit_is_told_of_by_its_node_before_any_report_and_only_once() -> None:
    history = NodeHistory()
    (out,) = history.unit_changed(NODE, "desk", UnitId("gpu/x"), "it hung")
    assert (out.kind, out.message) == (EventKind.UNIT_OUT, "gpu/x on desk is out: it hung.")
    assert history.reported(report(Role.OUT, "it hung")) == ()
    assert history.unit_changed(NODE, "desk", UnitId("gpu/x"), "it hung") == ()
    (back,) = history.unit_changed(NODE, "desk", UnitId("gpu/x"), "")
    assert back.kind is EventKind.UNIT_BACK
    assert history.unit_changed(NODE, "desk", UnitId("gpu/x"), "") == ()
    assert history.reported(report(Role.SERVES)) == ()
    (again,) = history.unit_changed(NODE, "desk", UnitId("gpu/x"), "it hung again")
    assert again.kind is EventKind.UNIT_OUT
    assert history.reported(report(Role.OUT, "it hung again")) == ()
