"""Measure figures and rates of backends on the devices on which they work.

A backend's module (``probe.trials.running``) is run as a child process with the command ``measure
DEVICE INTERFACE VARIANT NUM_THREADS MAX_WEIGHTS_BYTES``, and prints ``{"figures": {NAME: {"value":
…, "source": …}, …}, "rates": {…}}`` with the names of ``Figures`` and of ``Rates``. Rates are those
of ``potluck.engines.profiling.rate_program``. The output is validated here, and cached until the
device, its software or the number of threads changes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Sequence

from potluck.host.child import (
    ChildAnswer,
    ChildFailure,
    ChildOutcome,
    Failure,
    run_child,
)
from potluck.host.child_output import one_line
from potluck.host.memory import available_memory
from potluck.probe.cache import ProbeCache
from potluck.probe.cases import self_test
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.trials.interfaces import interface_argument, interface_details
from potluck.probe.trials.quarantine import run_unless_quarantined
from potluck.types.backend import BackendSpec, DeviceKind
from potluck.types.hardware import Device, Figure, Figures, Origin, Rates, Trial

_log = logging.getLogger(__name__)

_FIGURES = tuple(field.name for field in dataclasses.fields(Figures))
_RATES = tuple(field.name for field in dataclasses.fields(Rates))

_MAX_RESIDENT_BYTES = 1 << 30
"""Memory for a child in addition to the weights: a CUDA or OpenCL context uses hundreds of MB,
NumPy and the core 40."""

_MEASURE_SECONDS = 20.0
"""Eight times the expected time on a CPU, since a busy machine is slow."""
_MEASURE_SECONDS_WITH_COMPILER = 120.0
"""Additional time for backends that compile for their device. tinygrad needs 11 s on a server's
core; boards' cores have a quarter of that speed or less, and the driver's compiler needs time
too."""
_TURN_SECONDS = _MEASURE_SECONDS_WITH_COMPILER + 5
"""As long as another process whose child hangs may hold the lock, so that its result is known
afterwards."""


def cached_measurement(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    num_threads: int,
    cache: ProbeCache,
) -> Trial | None:
    """Return ``trial`` with the cached measurement for this number of threads; None if there is
    none.
    """
    if not trial.works:
        return None
    key = _measurement_key(spec, device, trial, num_threads)
    return _with_measured(trial, cache.get(key))


def measure_backend(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    num_threads: int,
    cache: ProbeCache,
    retry: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Trial:
    """Return ``trial`` with figures and rates of its fastest variant, cached or newly measured.

    Only one process measures at a time, since they would disturb each other. A process that has
    waited uses the other's result. ``retry`` always measures again. A trial that does not work is
    not measured. If measuring fails, the figures and rates of ``trial`` are unknown, with the
    reason as their source.
    """
    if not trial.works:
        return trial
    key = _measurement_key(spec, device, trial, num_threads)
    known = cache.get(key)
    if not retry and (measured := _with_measured(trial, known)) is not None:
        return measured
    with cache.turn(_TURN_SECONDS):
        found = cache.get(key)
        if found != known and (measured := _with_measured(trial, found)) is not None:
            return measured
        outcome = run_unless_quarantined(
            cache,
            key,
            lambda: _measure(spec, device, trial, num_threads, on_progress),
            retry=retry,
            deadline_seconds=_measure_seconds(spec, device),
        )
        if isinstance(outcome, ChildFailure):
            _log.warning("cannot measure %s: %s", trial.unit_id, outcome.reason)
            return _unmeasured(trial, f"measuring failed: {outcome.reason}")
        cache.put(key, {name: outcome.document[name] for name in ("figures", "rates")})
    return _with_measured(trial, outcome.document) or trial


def _measure(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    num_threads: int,
    on_progress: Callable[[float], None] | None,
) -> ChildOutcome:
    max_weights_bytes = _free_bytes(device) // 8
    outcome = run_child(
        spec.module,
        (
            "measure",
            device.device_id,
            interface_argument(trial.interface),
            trial.variants[-1],
            str(num_threads),
            str(max_weights_bytes),
        ),
        deadline_seconds=_measure_seconds(spec, device),
        max_resident_bytes=_MAX_RESIDENT_BYTES + max_weights_bytes,
        on_progress=on_progress,
    )
    if isinstance(outcome, ChildAnswer) and _with_measured(trial, outcome.document) is None:
        return ChildFailure(
            failure=Failure.MALFORMED,
            reason="its figures are not all positive numbers with sources",
            seconds=outcome.seconds,
        )
    return outcome


def _measure_seconds(spec: BackendSpec, device: Device) -> float:
    has_compiler = spec.is_software or device.kind is not DeviceKind.CPU
    return _MEASURE_SECONDS_WITH_COMPILER if has_compiler else _MEASURE_SECONDS


def _measurement_key(spec: BackendSpec, device: Device, trial: Trial, num_threads: int) -> str:
    """Return the cache key, which includes the host: identical machines may share a home directory,
    but differ in installed memory.
    """
    subject = f"measure/{spec.name}/{trial.variants[-1]}/{num_threads}/{os.uname().nodename}"
    software = installed_software(spec.packages)
    return fingerprint(subject, (device,), software, details=interface_details(trial.interface))


def _with_measured(trial: Trial, document: dict[str, object] | None) -> Trial | None:
    """Return ``trial`` with the measurement in ``document``; None if any part of it is invalid.

    Values that a backend does not provide are unknown.
    """
    if document is None:
        return None
    figures = _found(document.get("figures"), _FIGURES)
    rates = _found(document.get("rates"), _RATES)
    if figures is None or rates is None:
        return None
    return dataclasses.replace(trial, figures=Figures(**figures), rates=Rates(**rates))


def _unmeasured(trial: Trial, reason: str) -> Trial:
    unknown = Figure(source=one_line(reason))
    return dataclasses.replace(
        trial,
        figures=Figures(**dict.fromkeys(_FIGURES, unknown)),
        rates=Rates(**dict.fromkeys(_RATES, unknown)),
    )


def _found(document: object, names: Sequence[str]) -> dict[str, Figure] | None:
    """Return measured figures by name; None unless all have a positive value, a source and a known
    name.
    """
    if not isinstance(document, dict):
        return None
    found = {}
    for name, figure in document.items():
        match figure:
            case {"value": int() | float() as value, "source": str(source)} if (
                name in names and 0 < (number := self_test.as_float(value)) < math.inf
            ):
                found[name] = Figure(value=number, origin=Origin.MEASURED, source=one_line(source))
            case _:
                return None
    return found


def _free_bytes(device: Device) -> int:
    """Return the free memory of the device, or 1 GiB if it is unknown."""
    free = [] if device.memory.free_bytes is None else [device.memory.free_bytes]
    if device.memory.is_shared:
        free.append(available_memory().bytes)
    return min(free, default=1 << 30)
