"""When a unit on which stages fail is excluded from plans, and for how long."""

from __future__ import annotations

from support.cluster.calls import A, B, C

from potluck.cluster.coordinator.excluded_units import (
    ExcludedUnits,
    StageError,
    StageStalledError,
)
from potluck.types.cluster import Epoch, NodeId, UnitId
from potluck.types.node import CPU_UNIT
from potluck.types.unit import PAUSES_SECONDS

GPU = UnitId("gpu/played")


def full(node: NodeId = B, unit: UnitId = CPU_UNIT, cause: str = "its disk is full") -> StageError:
    return StageError(1, node, unit, cause)


def after(
    *failures: tuple[float, StageError],
    units: ExcludedUnits | None = None,
    is_first: bool = False,
) -> ExcludedUnits:
    """The state after failures at these times, each in an epoch of its own."""
    units = units or ExcludedUnits()
    for now, error in failures:
        epoch = Epoch(number=int(now * 1000), coordinator=A)
        units = units.failed(error, epoch, now, is_first=is_first)
    return units


def excluded(units: ExcludedUnits, now: float, *, is_first: bool = False) -> dict[str, str]:
    return {node: reason for (node, _), reason in units.reasons(now, is_first=is_first).items()}


def test_the_second_failure_excludes_a_unit_for_a_minute() -> None:
    units = after((1.0, full()))
    assert excluded(units, 1.0) == {}
    units = after((2.0, full()), units=units)
    assert excluded(units, 61.9) == {B: f"stage 1 on node {B}: its disk is full"}
    assert excluded(units, 62.0) == {}


def test_other_units_of_a_node_are_not_excluded_with_it() -> None:
    units = after((1.0, full()), (2.0, full(unit=GPU)), (3.0, full(unit=GPU)))
    assert list(units.reasons(3.0, is_first=False)) == [(B, GPU)]


def test_a_unit_that_fails_again_is_excluded_for_longer_each_time() -> None:
    units = after((0.0, full()), (1.0, full()))
    now = 1.0
    for pause in (*PAUSES_SECONDS[1:], PAUSES_SECONDS[-1]):
        now += 2000.0
        units = after((now, full()), units=units)
        assert excluded(units, now + pause - 1)
        assert not excluded(units, now + pause)


def test_a_unit_that_is_used_nevertheless_is_not_excluded_for_longer() -> None:
    units = after((0.0, full()), (1.0, full()), *((float(now), full()) for now in range(2, 50)))
    assert excluded(units, 60.0)
    assert not excluded(units, 61.0)


def test_two_reports_of_one_failure_count_as_one() -> None:
    assert excluded(after((1.0, full()), (1.0, full(cause="its worker was killed"))), 1.0) == {}


def test_failures_with_an_epoch_that_served_in_between_are_not_consecutive() -> None:
    units = after((1.0, full()))
    assert excluded(after((2.0, full()), units=units.served()), 2.0) == {}


def test_a_unit_that_served_since_it_was_excluded_may_fail_once_again() -> None:
    units = after((1.0, full()), (2.0, full())).served()
    units = after((100.0, full()), units=units)
    assert excluded(units, 100.0) == {}
    units = after((101.0, full()), units=units)
    assert excluded(units, 101.0 + PAUSES_SECONDS[1] - 1)


def test_a_unit_that_stalls_is_excluded_at_once() -> None:
    units = after((1.0, StageStalledError(0, B, CPU_UNIT, "it made no progress")))
    assert list(excluded(units, 1.0)) == [B]


def test_a_first_deployment_uses_no_unit_again_that_failed() -> None:
    units = after((1.0, full()), is_first=True)
    assert list(excluded(units, 10_000.0, is_first=True)) == [B]
    assert excluded(units, 10_000.0) == {}


def test_what_fails_alike_everywhere_is_not_the_fault_of_units() -> None:
    names = [A, B, C, NodeId("d" * 16)]
    units = after(*((float(now), full(node)) for now, node in enumerate(names, 1)), is_first=True)
    assert sorted(excluded(units, 5.0, is_first=True)) == names[:3]
    # What was so before a plan served says nothing of later failures.
    units = after((6.0, full(names[3])), units=units.served(), is_first=True)
    assert names[3] in excluded(units, 6.0)
