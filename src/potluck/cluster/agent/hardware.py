"""The probe's reports on this node, while the agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from potluck.errors import PotluckError
from potluck.host.system import THIS_MACHINE
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.types.hardware import ProbeReport

_log = logging.getLogger(__name__)


_PAUSES_SECONDS = (60.0, 300.0, 1800.0)
"""The delays before probing again what was not tested because the machine was busy, or what did not
answer. Each attempt may leave behind a thread that waits for a hung driver, so there are few."""


class Hardware:
    """Runs the probe on a thread; created by :meth:`start`, for use in the event loop it starts in.

    No failure of the machine stops it: there is always a report, with the CPU in it.
    """

    def __init__(self) -> None:
        self._report: ProbeReport | None = None
        self._is_there = asyncio.Event()
        self._is_closed = False
        self._failure = ""

    @classmethod
    async def start(
        cls, options: ProbeOptions, cache: ProbeCache, *, detectors: Sequence[Detector]
    ) -> Hardware:
        """Start, and return once the CPU has been tried; slower units are reported later."""
        hardware = cls()
        loop = asyncio.get_running_loop()

        def tell(report: ProbeReport) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                loop.call_soon_threadsafe(hardware._received, report)

        def run() -> None:
            try:
                report = probe_node(
                    THIS_MACHINE, options, cache, detectors=detectors, on_report=tell
                )
                for seconds in _PAUSES_SECONDS:
                    if not report.pending:
                        return
                    time.sleep(seconds)
                    report = probe_node(THIS_MACHINE, options, cache, detectors=detectors)
                    tell(report)
            except Exception as error:  # noqa: BLE001 - the boundary of the thread
                _log.exception("the probe failed")
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(hardware._failed, error)

        threading.Thread(target=run, name="probe", daemon=True).start()
        await hardware._is_there.wait()
        if hardware._report is None:
            raise PotluckError(
                f"this machine could not be probed: {hardware._failure}",
                hint="this is a bug in Potluck: please report it with the agent's log",
            )
        return hardware

    @property
    def report(self) -> ProbeReport:
        """Return the latest report."""
        if self._report is None:
            raise RuntimeError("the probe was not started")
        return self._report

    def _failed(self, error: Exception) -> None:
        """Keep the last report, if any; without one the agent cannot start."""
        self._failure = f"{type(error).__name__}: {error}"
        self._is_there.set()

    def close(self) -> None:
        """Stop handling reports; a running measurement finishes by itself within seconds."""
        self._is_closed = True

    def _received(self, report: ProbeReport) -> None:
        if self._is_closed:
            return
        for trial in report.trials:
            if self._report is not None and trial in self._report.trials:
                continue
            if trial.is_pending:
                _log.warning("%s has not been tested yet: %s", trial.unit_id, trial.reason)
            elif not trial.works:
                _log.warning("%s cannot be used: %s", trial.unit_id, trial.reason)
            elif trial.reason:
                _log.warning("%s works, but for %s", trial.unit_id, trial.reason)
        self._report = report
        self._is_there.set()
