"""Asking a vendor's library, in a child process, what the files do not tell."""

from __future__ import annotations

import os

from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildOutcome, run_child
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.layer import VendorQuery
from potluck.probe.quarantine import run_unless_quarantined
from potluck.types.hardware import LayerReport

_MAX_RESIDENT_BYTES = 1 << 30
"""NVML takes some tens of MB, a CUDA or OpenCL context some hundreds."""


def ask_vendor(
    query: VendorQuery,
    report: LayerReport,
    *,
    kernel_release: str,
    cache: ProbeCache,
    retry: bool = False,
    deadline_seconds: float = 20.0,
) -> ChildOutcome:
    """What the library says, or why it says nothing; ``report`` is what the files told.

    A library that crashed, hung or grew is not asked again while kernel, driver, devices and
    Potluck stay as they are, unless ``retry``. Answers are not kept: they hold what changes.
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
