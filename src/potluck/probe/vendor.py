"""Query a vendor's library in a child process for values that files do not contain."""

from __future__ import annotations

import os

from potluck.probe.cache import ProbeCache
from potluck.probe.detector import VendorQuery
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.processes.child import ChildOutcome, run_child
from potluck.probe.trials.quarantine import run_unless_quarantined
from potluck.types.hardware import DetectorReport

_MAX_RESIDENT_BYTES = 1 << 30
"""NVML uses tens of MB, a CUDA or OpenCL context hundreds."""


def ask_vendor(
    query: VendorQuery,
    report: DetectorReport,
    *,
    kernel_release: str,
    cache: ProbeCache,
    retry: bool = False,
    deadline_seconds: float = 20.0,
) -> ChildOutcome:
    """Return the library's answer, or the reason why there is none.

    ``report`` has the devices found from files.

    A library that crashed, hung or used too much memory is not queried again until the kernel,
    driver, devices or Potluck change, unless ``retry`` is set. Answers are not cached, since they
    contain values that change.
    """

    def ask() -> ChildOutcome:
        return run_child(
            query.module,
            query.arguments,
            deadline_seconds=deadline_seconds,
            max_resident_bytes=_MAX_RESIDENT_BYTES,
            environment={**os.environ, **query.environment},
        )

    key = fingerprint(
        " ".join((f"query/{query.module}", *query.arguments)),
        report.devices,
        installed_software(kernel_release, ()),
        details=query.details,
    )
    return run_unless_quarantined(cache, key, ask, retry=retry, deadline_seconds=deadline_seconds)
