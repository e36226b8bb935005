"""Monitors units that may fail: takes them out of use when they do, tests them, and restores them.

Self-tests run in child processes of the probe, which a driver may crash or hang. The CPU with the
native backend is not monitored: it has no driver, and there is nothing to fall back to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from potluck.cluster.agent.unit_health import UnitFailure, UnitOutages
from potluck.cluster.agent.units import NodeUnit
from potluck.cluster.agent.worker_process import WorkerProcess, silent
from potluck.cluster.background import is_set_within, on_thread
from potluck.cluster.wire.worker_messages import Stats
from potluck.errors import PotluckError, UnitFaultError
from potluck.probe.cache import ProbeCache
from potluck.probe.trials.quarantine import is_quarantined, quarantine
from potluck.probe.trials.running import Retest, retest, trial_key
from potluck.types.backend import BackendSpec
from potluck.types.cluster import UnitId
from potluck.types.hardware import Device, Trial
from potluck.types.node import CPU_UNIT
from potluck.types.unit import Fault, Role

_log = logging.getLogger(__name__)

_TEST_SECONDS = 120.0
"""The time limit of a self-test: a cold driver compiles first. At least twice the probe's limit, so
that a unit that passed there and is now slower on a busy machine is not taken for hung."""

_LOOK_SECONDS = 5.0
"""The interval between checks of stages on such units, which bounds how soon a unit that blocks its
whole process is detected, in addition to the limit of a step."""
_REST_SECONDS = 60.0
"""The interval if there are none, for units that a slow probe may find, or a lifted quarantine."""

_AFTER_DEFECT_SECONDS = 5.0
"""The delay before the next check after one failed for an unexpected reason."""


_Found = tuple[BackendSpec, Device, Trial]


class UnitMonitor:
    """The monitor. For use in the agent's event loop; ``run`` is its task.

    Units that are out are recorded in ``outages``. ``units`` are the node's current units, and
    ``workers_on`` returns the workers on one. A step may take ``step_seconds``; a unit that has
    computed none for ``idle_seconds`` is tested.
    """

    def __init__(
        self,
        backends: Sequence[BackendSpec],
        cache: ProbeCache,
        outages: UnitOutages,
        *,
        units: Callable[[], Sequence[NodeUnit]],
        workers_on: Callable[[UnitId], Sequence[WorkerProcess]],
        step_seconds: float,
        idle_seconds: float,
    ) -> None:
        self._specs = {spec.name: spec for spec in backends}
        self._cache = cache
        self._units = units
        self._workers_on = workers_on
        self._step_seconds = step_seconds
        self._idle_seconds = idle_seconds
        self._outages = outages
        self._seen: dict[UnitId, _Seen] = {}
        self._asking: dict[WorkerProcess, asyncio.Task[None]] = {}
        self._testing: dict[UnitId, asyncio.Task[None]] = {}
        self._quarantined: set[UnitId] = set()

    async def run(self) -> None:
        """Run due tests and check workers, forever."""
        try:
            while True:
                await self._pause()
                try:
                    await self._check_units()
                except Exception:  # noqa: BLE001 - nothing else monitors the units
                    _log.exception("could not check the units")
                    await asyncio.sleep(_AFTER_DEFECT_SECONDS)
        finally:
            for task in (*self._asking.values(), *self._testing.values()):
                task.cancel()

    async def _check_units(self) -> None:
        await self._keep_quarantine()
        for unit_id in self._outages.health.due(time.monotonic()):
            self._begin(unit_id, self._test_again(unit_id))
        for unit_id in self._in_use():
            self._query_workers(unit_id)
            if self._seen[unit_id].idle_seconds >= self._idle_seconds:
                self._begin(unit_id, self._test_idle(unit_id))

    async def _pause(self) -> None:
        seconds = min(_REST_SECONDS, self._idle_seconds)
        if self._in_use():
            seconds = min(seconds, _LOOK_SECONDS, self._step_seconds)
        if (at := self._outages.health.next_test_at(excluding=self._testing)) is not None:
            seconds = min(seconds, max(0.0, at - time.monotonic()))
        await is_set_within(self._outages.news, seconds)
        self._outages.news.clear()

    def _in_use(self) -> list[UnitId]:
        """Return the units that may fail and are computing, or would on request."""
        found = []
        for unit in self._units():
            unit_id = UnitId(unit.chosen.unit_id)
            if unit_id == CPU_UNIT or unit.chosen.role in (Role.PENDING, Role.OUT):
                continue
            if unit.chosen.role is Role.SERVES or self._workers_on(unit_id):
                found.append(unit_id)
        return found

    # Stages on such units.

    def _query_workers(self, unit_id: UnitId) -> None:
        """Ask the unit's workers for their totals, unless a call is in progress."""
        seen = self._seen.setdefault(unit_id, _Seen())
        workers = set(self._workers_on(unit_id))
        seen.keep(workers)
        for worker in workers - self._asking.keys():
            task = asyncio.ensure_future(self._ask(worker, seen))
            self._asking[worker] = task
            task.add_done_callback(partial(self._queried, worker))

    def _queried(self, worker: WorkerProcess, task: asyncio.Task[None]) -> None:
        del self._asking[worker]
        _log_defect(task, "could not query a worker")

    async def _ask(self, worker: WorkerProcess, seen: _Seen) -> None:
        try:
            async with asyncio.timeout(self._step_seconds):
                seen.take(worker, await worker.stats())
        except TimeoutError:
            worker.fail(silent(self._step_seconds))
        except PotluckError:
            return  # it has exited, which was handled

    # Self-tests.

    def _begin(self, unit_id: UnitId, test: Coroutine[Any, Any, None]) -> None:
        """Start a test of a unit, which has no other test running."""
        if unit_id in self._testing:
            test.close()
            return
        task = asyncio.ensure_future(test)
        self._testing[unit_id] = task
        task.add_done_callback(partial(self._tested, unit_id))

    def _tested(self, unit_id: UnitId, task: asyncio.Task[None]) -> None:
        del self._testing[unit_id]
        if (error := _log_defect(task, f"the self-test of {unit_id} failed")) is not None:
            # Otherwise it would be due again immediately.
            problem = f"{type(error).__name__}: {error}"
            self._outages.health = self._outages.health.tested(unit_id, problem, time.monotonic())
            if unit_id in self._seen:
                self._seen[unit_id].was_tested()
        self._outages.news.set()

    async def _test_again(self, unit_id: UnitId) -> None:
        """Test a unit that is out."""
        result = await self._test(unit_id)
        self._outages.health = self._outages.health.tested(
            unit_id, result.problem, time.monotonic()
        )
        reason = self._outages.reasons().get(unit_id)
        if reason is None:
            _log.warning("%s works again and can be used", unit_id)
            self._seen.pop(unit_id, None)
        else:
            _log.warning("%s is still not used: %s", unit_id, reason)
            self._quarantined.discard(unit_id)  # superseded by the result of the test

    async def _test_idle(self, unit_id: UnitId) -> None:
        """Test a unit that has been idle for a while, so that a fault is found before use."""
        result = await self._test(unit_id)
        self._seen[unit_id].was_tested()
        if result.is_pending:
            return
        workers = self._workers_on(unit_id)
        is_out = (
            unit_id in self._outages.health.outages
        )  # it failed in use in the meantime, and has its own test
        if is_out or not result.problem or (result.fault is None and workers):
            return
        fault = result.fault or Fault.DRIVER
        message = f"its self-test failed while it was idle: {result.problem}"
        is_dangerous = result.fault is not None
        self._outages.failed(
            unit_id, UnitFailure(fault=fault, message=message, is_dangerous=is_dangerous)
        )
        for worker in workers:
            worker.fail(UnitFaultError(fault.value, message))

    async def _test(self, unit_id: UnitId) -> Retest:
        found = self._find(unit_id)
        if found is None:
            return Retest(problem="the probe no longer finds it", fault=None)
        spec, device, trial = found

        def test() -> Retest:
            try:
                return retest(
                    spec, device, trial, cache=self._cache, deadline_seconds=_TEST_SECONDS
                )
            except Exception as error:  # noqa: BLE001 - the boundary of the thread
                _log.exception("could not run a self-test")
                return Retest(problem=f"{type(error).__name__}: {error}", fault=None)

        return await on_thread(test, name="self-test")

    async def _keep_quarantine(self) -> None:
        """Record units in the probe's quarantine for later starts of the agent, and observe it.

        A unit that stays out comes back when its quarantine is lifted (``potluck probe --retry``).
        """
        out = self._outages.health.outages
        self._quarantined &= out.keys()
        for unit_id in out.keys() - self._testing.keys():
            found, outage = self._find(unit_id), out[unit_id]
            if found is None or not (outage.failure.is_dangerous or outage.stays_out):
                continue
            if unit_id not in self._quarantined:
                if await asyncio.to_thread(self._quarantine, found, outage.findings):
                    self._quarantined.add(unit_id)
            elif outage.stays_out and not await asyncio.to_thread(self._is_quarantined, found):
                self._outages.health = self._outages.health.restored(unit_id)
                _log.warning("%s was tested again and can be used", unit_id)

    def _quarantine(self, found: _Found, reason: str) -> bool:
        """Add it to the quarantine; return whether that could be stored."""
        quarantine(self._cache, _key(found), reason)
        return self._is_quarantined(found)

    def _is_quarantined(self, found: _Found) -> bool:
        return is_quarantined(self._cache, _key(found))

    def _find(self, unit_id: UnitId) -> _Found | None:
        """Return the unit as it was tried."""
        for unit in self._units():
            if unit.chosen.unit_id == unit_id:
                return self._specs[unit.chosen.backend], unit.device, unit.trial
        return None


def _key(found: _Found) -> str:
    spec, device, trial = found
    return trial_key(spec, device, trial.interface)


def _log_defect(task: asyncio.Task[None], what: str) -> BaseException | None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error("%s", what, exc_info=error)
    return error


class _Seen:
    """The activity of a unit's workers, as far as it is known."""

    def __init__(self) -> None:
        self._num_steps: dict[WorkerProcess, int] = {}
        self._active_at = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return time.monotonic() - self._active_at

    def keep(self, workers: set[WorkerProcess]) -> None:
        """Set the current workers; a change counts as activity."""
        if workers != self._num_steps.keys():
            self._active_at = time.monotonic()
        self._num_steps = {worker: self._num_steps.get(worker, 0) for worker in workers}

    def take(self, worker: WorkerProcess, stats: Stats | None) -> None:
        """Update from a worker's totals, which are None while it loads."""
        if worker not in self._num_steps:
            return
        if stats is None or stats.busy_seconds > 0 or stats.num_steps != self._num_steps[worker]:
            self._active_at = time.monotonic()
        if stats is not None:
            self._num_steps[worker] = stats.num_steps

    def was_tested(self) -> None:
        self._active_at = time.monotonic()
