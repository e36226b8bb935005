"""What the probe says of this node, while the agent runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence

from potluck.errors import PotluckError
from potluck.probe.cache import ProbeCache
from potluck.probe.layer import Layer
from potluck.probe.probe import ProbeOptions, probe_node
from potluck.probe.system import THIS_MACHINE
from potluck.types.hardware import ProbeReport

_log = logging.getLogger(__name__)


_PAUSES_SECONDS = (60.0, 300.0, 1800.0)
"""Before it probes again what was not tested yet, as the machine was too busy, or what did not
answer. Each time may leave a thread behind that waits for a wedged driver, and so they are few."""


class Hardware:
    """The probe in a thread of its own; made by :meth:`start`, for use in the loop it starts in.

    Nothing that a machine does ends it: there is always a report, with the CPU in it.
    """

    def __init__(self) -> None:
        self._report: ProbeReport | None = None
        self._is_there = asyncio.Event()
        self._is_closed = False
        self._failure = ""

    @classmethod
    async def start(
        cls, options: ProbeOptions, cache: ProbeCache, *, layers: Sequence[Layer]
    ) -> Hardware:
        """Begin, and return as soon as the CPU was tried; what is slower is reported later."""
        hardware = cls()
        loop = asyncio.get_running_loop()

        def tell(report: ProbeReport) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody is left to tell
                loop.call_soon_threadsafe(hardware._heard, report)

        def run() -> None:
            try:
                report = probe_node(THIS_MACHINE, options, cache, layers=layers, on_report=tell)
                for seconds in _PAUSES_SECONDS:
                    if not report.pending:
                        return
                    time.sleep(seconds)
                    report = probe_node(THIS_MACHINE, options, cache, layers=layers)
                    tell(report)
            except Exception as error:  # noqa: BLE001 - the boundary of the thread
                _log.exception("the probe has failed")
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(hardware._failed, error)

        threading.Thread(target=run, name="probe", daemon=True).start()
        await hardware._is_there.wait()
        if hardware._report is None:
            raise PotluckError(
                f"this machine could not be probed: {hardware._failure}",
                hint="this is a fault of Potluck: please report it, with its log",
            )
        return hardware

    @property
    def report(self) -> ProbeReport:
        """The latest."""
        if self._report is None:
            raise RuntimeError("the report of a probe that was not started")
        return self._report

    def _failed(self, error: Exception) -> None:
        """What was reported until now stands; without any report the agent cannot start."""
        self._failure = f"{type(error).__name__}: {error}"
        self._is_there.set()

    def close(self) -> None:
        """Hear no more reports; a measurement that runs ends by itself within seconds."""
        self._is_closed = True

    def _heard(self, report: ProbeReport) -> None:
        if self._is_closed:
            return
        for trial in report.trials:
            if self._report is not None and trial in self._report.trials:
                continue
            if trial.is_pending:
                _log.warning("%s is not tested yet: %s", trial.unit_id, trial.reason)
            elif not trial.works:
                _log.warning("%s cannot be used: %s", trial.unit_id, trial.reason)
            elif trial.reason:
                _log.warning("%s works, but for %s", trial.unit_id, trial.reason)
        self._report = report
        self._is_there.set()
