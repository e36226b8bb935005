"""Decides which of a node's units are out of use, and when each is tested again.

Any fault takes a unit out immediately. It comes back when its self-test
passes, a while after the fault: a driver that was reset needs seconds, and a broken unit should not
be tried all day. A unit that fails a third time within an hour passes its self-test but fails in
use: it stays out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from potluck.errors import PotluckError, UnitFaultError
from potluck.host.child import SIGNALS_FROM_OUTSIDE
from potluck.types.cluster import UnitId
from potluck.types.node import CPU_UNIT
from potluck.types.quantities import format_seconds
from potluck.types.unit import Fault, pause_seconds

_log = logging.getLogger(__name__)

MAX_FAULTS = 3
FORGET_SECONDS = 3600.0
"""``MAX_FAULTS`` within this time take a unit out permanently."""

SUSPICIOUS = frozenset({Fault.NOT_FINITE, Fault.WRONG})
"""Faults after which the self-test runs immediately, to tell a broken unit from an unusual model.
"""

_DANGEROUS = frozenset({Fault.HUNG, Fault.WRONG})

_STAYS_OUT = "it stays out until potluck probe --retry finds that it works"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFailure:
    """A failure of a unit in use.

    ``is_dangerous``: an agent that restarts must not run into it again.
    """

    fault: Fault
    message: str
    is_dangerous: bool


def failure_of(error: PotluckError, status: int | None) -> UnitFailure | None:
    """Return what a worker's exit says about its unit; None if nothing, or if its agent killed it.

    ``status`` is that of the process as in ``subprocess``; None if it could not be killed.
    """
    if not isinstance(error, UnitFaultError):
        return None
    fault = Fault(error.fault)
    has_crashed = status is not None and status < 0 and -status not in SIGNALS_FROM_OUTSIDE
    return UnitFailure(
        fault=fault, message=error.message, is_dangerous=has_crashed or fault in _DANGEROUS
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Why a unit is out. Times are the caller's, in seconds.

    ``verdict`` is the result of its most recent self-test. ``returns_at`` is the earliest time at
    which a passed test restores it (None: it stays out), and ``test_at`` when it is tested next.
    """

    failure: UnitFailure
    num_faults: int
    num_failed_tests: int = 0
    returns_at: float | None
    test_at: float | None
    verdict: str = ""

    @property
    def stays_out(self) -> bool:
        """Whether it stays out whatever its self-tests find."""
        return self.returns_at is None

    @property
    def findings(self) -> str:
        """Return what happened, and the result of tests since."""
        happened = f"{self.failure.fault.value}: {self.failure.message}"
        return f"{happened}, and {self.verdict}" if self.verdict else happened

    @property
    def reason(self) -> str:
        """Return one line with the findings and what will be done."""
        if self.stays_out:
            times = f"fault {self.num_faults} within an hour"
            return f"{self.findings} ({times}: {_STAYS_OUT})"
        pause = format_seconds(pause_seconds(self.num_faults + self.num_failed_tests))
        return f"{self.findings} (tested again after {pause}, and used again if it passes)"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHealth:
    """The units that are out, and the failures of units within the last hour. Pure."""

    outages: Mapping[UnitId, Outage] = field(default_factory=dict)
    faults: Mapping[UnitId, tuple[float, ...]] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[UnitId, str]:
        """Return the reasons of the units that are out."""
        return {unit_id: outage.reason for unit_id, outage in self.outages.items()}

    def next_test_at(self, *, excluding: Container[UnitId] = ()) -> float | None:
        """Return when the next test is due, except those of the units ``excluding``."""
        times = [
            outage.test_at
            for unit_id, outage in self.outages.items()
            if outage.test_at is not None and unit_id not in excluding
        ]
        return min(times, default=None)

    def failed(self, unit_id: UnitId, failure: UnitFailure, now: float) -> UnitHealth:
        """Return the state after a unit failed in use. If it is already out, this is the same fault
        again.
        """
        if unit_id in self.outages:
            return self
        recent = (*(at for at in self.faults.get(unit_id, ()) if now - at < FORGET_SECONDS), now)
        stays_out = len(recent) >= MAX_FAULTS
        returns_at = None if stays_out else now + pause_seconds(len(recent))
        outage = Outage(
            failure=failure,
            num_faults=len(recent),
            returns_at=returns_at,
            test_at=now if failure.fault in SUSPICIOUS else returns_at,
        )
        return UnitHealth(
            outages={**self.outages, unit_id: outage}, faults={**self.faults, unit_id: recent}
        )

    def tested(self, unit_id: UnitId, problem: str, now: float) -> UnitHealth:
        """Return the state after the self-test of a unit that is out; ``problem`` is empty if it
        passed.
        """
        outage = self.outages.get(unit_id)
        if outage is None:
            return self
        if not problem and outage.returns_at is not None and now >= outage.returns_at:
            rest = {other: each for other, each in self.outages.items() if other != unit_id}
            return dataclasses.replace(self, outages=rest)
        verdict = f"its self-test fails: {problem}" if problem else "its self-test passes"
        num_failed = outage.num_failed_tests + bool(problem)
        returns_at = outage.returns_at
        if problem and returns_at is not None:
            returns_at = now + pause_seconds(outage.num_faults + num_failed)
        outage = dataclasses.replace(
            outage,
            verdict=verdict,
            num_failed_tests=num_failed,
            returns_at=returns_at,
            test_at=returns_at,
        )
        return dataclasses.replace(self, outages={**self.outages, unit_id: outage})

    def restored(self, unit_id: UnitId) -> UnitHealth:
        """Return the state after a unit that stays out was found to work, as if it had never
        failed.
        """
        return UnitHealth(
            outages={other: each for other, each in self.outages.items() if other != unit_id},
            faults={other: times for other, times in self.faults.items() if other != unit_id},
        )

    def due(self, now: float) -> tuple[UnitId, ...]:
        """Return the units to test now."""
        return tuple(
            unit_id
            for unit_id, outage in self.outages.items()
            if outage.test_at is not None and outage.test_at <= now
        )


Changed = Callable[[UnitId, str], None]
"""Gets a unit that is now out, with the reason, or one that is used again, with an empty one."""


class UnitOutages:
    """The units that are out. For use in the agent's event loop.

    ``health`` is replaced after every test of a unit; ``news`` is set when there is something to
    handle. ``changed`` is called for every unit that goes out or comes back.
    """

    def __init__(self, changed: Changed) -> None:
        self.news = asyncio.Event()
        self._changed = changed
        self._health = UnitHealth()

    @property
    def health(self) -> UnitHealth:
        """Return the units that are out, and when units failed."""
        return self._health

    @health.setter
    def health(self, health: UnitHealth) -> None:
        before, after = self._health.reasons, health.reasons
        self._health = health
        for unit_id in after.keys() - before.keys():
            self._changed(unit_id, after[unit_id])
        for unit_id in before.keys() - after.keys():
            self._changed(unit_id, "")

    def reasons(self) -> Mapping[str, str]:
        """Return why units are out, by unit id."""
        return {str(unit_id): reason for unit_id, reason in self.health.reasons.items()}

    def failed(self, unit_id: UnitId, failure: UnitFailure) -> None:
        """Take a failed unit out of use, except for the CPU with the native backend."""
        if unit_id == CPU_UNIT or unit_id in self.health.outages:
            return
        self.health = self.health.failed(unit_id, failure, time.monotonic())
        _log.warning("%s is no longer used: %s", unit_id, self.reasons()[unit_id])
        self.news.set()
