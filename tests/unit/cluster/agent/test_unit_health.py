"""When a unit is out, what is said about it, and when it comes back."""

from __future__ import annotations

import signal

import pytest

from potluck.cluster.agent.unit_health import UnitFailure, UnitHealth, failure_of
from potluck.errors import EngineError, UnitFaultError
from potluck.types.cluster import UnitId
from potluck.types.unit import Fault

GPU, OTHER = UnitId("of-gpu/tinygrad:CL"), UnitId("pci-0000:01:00.0/tinygrad:CL")
HUNG = UnitFailure(fault=Fault.HUNG, message="a step took longer than 30 s", is_dangerous=True)
NAN = UnitFailure(fault=Fault.NOT_FINITE, message="NaN", is_dangerous=False)


def test_a_fault_takes_a_unit_out_until_its_test_passes_a_minute_later() -> None:
    health = UnitHealth().failed(GPU, HUNG, 100.0)
    assert health.reasons == {
        GPU: "hung: a step took longer than 30 s "
        "(tested again after 1 min 0 s, and used again if it passes)"
    }
    assert (health.due(159.9), health.due(160.0)) == ((), (GPU,))
    assert health.next_test_at() == 160.0
    back = health.tested(GPU, "", 161.0)
    assert (back.reasons, back.next_test_at()) == ({}, None)
    assert health.reasons  # values do not change


def test_when_the_next_test_is_due() -> None:
    health = UnitHealth().failed(GPU, HUNG, 0.0).failed(OTHER, HUNG, 10.0)
    assert health.next_test_at() == 60.0
    assert health.next_test_at(excluding=(GPU,)) == 70.0
    assert health.next_test_at(excluding=(GPU, OTHER)) is None


def test_tests_that_fail_come_at_longer_and_longer_times() -> None:
    health = UnitHealth().failed(GPU, HUNG, 0.0)
    due = []
    for _ in range(4):
        at = health.next_test_at()
        assert at is not None
        due.append(at)
        health = health.tested(GPU, "wrong numbers", at)
    assert due == [60.0, 360.0, 2160.0, 3960.0]
    assert health.reasons[GPU] == (
        "hung: a step took longer than 30 s, and its self-test fails: wrong numbers "
        "(tested again after 30 min 0 s, and used again if it passes)"
    )


def test_the_third_fault_within_an_hour_keeps_it_out() -> None:
    health = UnitHealth()
    for at, back_at in ((0.0, 60.0), (1000.0, 1300.0)):
        health = health.failed(GPU, HUNG, at)
        assert health.tested(GPU, "", back_at - 1).reasons
        health = health.tested(GPU, "", back_at)
        assert not health.reasons
    third = health.failed(GPU, HUNG, 3599.0)
    assert third.next_test_at() is None
    assert third.outages[GPU].stays_out
    assert third.reasons[GPU].endswith(
        "(fault 3 within an hour: it stays out until potluck probe --retry finds that it works)"
    )
    later = health.failed(GPU, HUNG, 3601.0)
    assert not later.outages[GPU].stays_out
    again = third.restored(GPU).failed(GPU, HUNG, 4000.0)
    assert again.outages[GPU].num_faults == 1


def test_suspicion_is_tested_at_once_and_does_not_bring_it_back() -> None:
    health = UnitHealth().failed(GPU, NAN, 10.0)
    assert health.due(10.0) == (GPU,)
    passed = health.tested(GPU, "", 12.0)
    assert passed.reasons[GPU].startswith("not finite: NaN, and its self-test passes (")
    assert passed.next_test_at() == 70.0
    assert not passed.tested(GPU, "", 70.0).reasons
    failed = health.tested(GPU, "off by one", 12.0)
    assert "and its self-test fails: off by one (tested again after 5 min" in failed.reasons[GPU]
    assert failed.next_test_at() == 312.0


def test_suspicion_of_one_that_stays_out_is_tested_once() -> None:
    health = UnitHealth()
    for at in (0.0, 400.0, 800.0):
        health = health.failed(GPU, NAN, at).tested(GPU, "", at)
        if at < 800:
            health = health.tested(GPU, "", at + 300)
    assert health.outages[GPU].stays_out
    assert health.next_test_at() is None
    assert "its self-test passes (fault 3" in health.reasons[GPU]


def test_one_reset_that_ends_two_workers_is_one_fault_and_other_units_are_not_touched() -> None:
    health = UnitHealth().failed(GPU, HUNG, 0.0).failed(GPU, NAN, 0.1).failed(OTHER, NAN, 5.0)
    assert health.outages[GPU].failure == HUNG
    assert health.outages[GPU].num_faults == 1
    assert health.tested(GPU, "", 60.0).reasons.keys() == {OTHER}
    assert health.tested(UnitId("never/out"), "", 60.0) == health


@pytest.mark.parametrize(
    ("error", "status", "fault", "is_dangerous"),
    [
        (UnitFaultError("out of memory", "no"), 1, Fault.OUT_OF_MEMORY, False),
        (UnitFaultError("driver error", "no"), 1, Fault.DRIVER, False),
        (UnitFaultError("hung", "no"), 1, Fault.HUNG, True),
        (UnitFaultError("hung", "no"), None, Fault.HUNG, True),
        (UnitFaultError("wrong numbers", "no"), 1, Fault.WRONG, True),
        (UnitFaultError("not finite", "no"), 1, Fault.NOT_FINITE, False),
        (UnitFaultError("killed", "no"), -signal.SIGKILL, Fault.KILLED, False),
        (UnitFaultError("killed", "no"), -signal.SIGSEGV, Fault.KILLED, True),
        (UnitFaultError("killed", "no"), -signal.SIGABRT, Fault.KILLED, True),
    ],
)
def test_how_workers_end(
    error: UnitFaultError, status: int | None, fault: Fault, is_dangerous: bool
) -> None:
    failure = UnitFailure(fault=fault, message="no", is_dangerous=is_dangerous)
    assert failure_of(error, status) == failure


def test_what_says_nothing_of_a_unit() -> None:
    assert failure_of(EngineError("no such file"), 1) is None
