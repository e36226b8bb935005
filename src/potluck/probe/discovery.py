"""The first half of the probe: find a vendor's devices from files and from its library."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import partial

from potluck.host.child import ChildFailure, ChildOutcome, Failure, run_child
from potluck.host.guard import guarded, run_at_once
from potluck.host.system import System
from potluck.probe.cache import ProbeCache
from potluck.probe.detector import Detector, VendorQuery
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.trials.quarantine import run_unless_quarantined
from potluck.types.hardware import DetectorReport, Device

_CHILD_SHARE = 0.8
"""Subtracted from a child's remaining time, so that its failure is known before the deadline."""

_LEAST_CHILD_SECONDS = 0.05
"""Used when the deadline has passed, since a timeout must be above 0."""

_MAX_RESIDENT_BYTES = 1 << 30
"""NVML uses tens of MB, a CUDA or OpenCL context hundreds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDiscovery:
    """Finds devices on ``system`` until ``end`` (``time.monotonic``). No method raises."""

    system: System
    cache: ProbeCache
    retry: bool
    end: float

    def find(self, detector: Detector) -> DetectorReport:
        """Return the devices that the files show."""
        return guarded(
            lambda: _sound(detector.find(self.system)),
            lambda reason: DetectorReport(detector=detector.name, problems=(reason,)),
        )

    def ask(self, detector: Detector, report: DetectorReport) -> DetectorReport:
        """Return ``report``, which was read from files, with the data of the vendor's libraries."""
        return guarded(lambda: self._queried(detector, report), report.with_problems)

    def _queried(self, detector: Detector, report: DetectorReport) -> DetectorReport:
        queries = detector.queries(self.system, report)
        outcomes = run_at_once([partial(self._ask, query, report) for query in queries])
        for query, outcome in zip(queries, outcomes, strict=True):
            report = guarded(partial(_merged, query, report, outcome), report.with_problems)
        return report

    def _ask(self, query: VendorQuery, report: DetectorReport) -> ChildOutcome:
        return guarded(
            lambda: self._answer(query, report),
            lambda reason: ChildFailure(failure=Failure.NOT_STARTED, reason=reason, seconds=0.0),
        )

    def _answer(self, query: VendorQuery, report: DetectorReport) -> ChildOutcome:
        """Return the library's answer, or the reason why there is none.

        A library that crashed, hung or used too much memory is not queried again until the kernel,
        driver, devices or Potluck change, unless ``retry`` is set. Answers are not cached, since
        they contain values that change.
        """
        seconds = max(_LEAST_CHILD_SECONDS, _CHILD_SHARE * (self.end - time.monotonic()))
        key = fingerprint(
            " ".join((f"query/{query.module}", *query.arguments)),
            report.devices,
            installed_software(()),
            details=query.details,
        )
        return run_unless_quarantined(
            self.cache,
            key,
            lambda: run_child(
                query.module,
                query.arguments,
                deadline_seconds=seconds,
                max_resident_bytes=_MAX_RESIDENT_BYTES,
                environment={**os.environ, **query.environment},
            ),
            retry=self.retry,
            deadline_seconds=seconds,
        )


def _merged(query: VendorQuery, report: DetectorReport, outcome: ChildOutcome) -> DetectorReport:
    return _sound(query.merge(report, outcome))


def _sound(report: DetectorReport) -> DetectorReport:
    """Return ``report``, or raise ``TypeError`` if it is invalid.

    Without this check it would fail later, with no indication of its source.
    """
    if not isinstance(report, DetectorReport):
        raise TypeError(f"{type(report).__name__} is not a report")
    for device in report.devices:
        if not isinstance(device, Device):
            raise TypeError(f"{type(device).__name__} is not a device")
    return report
