"""Backends measured on the devices that they work on: figures, and rates to choose by.

A backend's module (``potluck.probe.trials``) is run as a child process with the command ``measure
DEVICE INTERFACE VARIANT NUM_THREADS MAX_WEIGHTS_BYTES``, and prints ``{"figures": {NAME: {"value":
…, "source": …}, …}, "rates": {…}}`` with the names of ``Figures`` and of ``Rates``; rates are those
of ``potluck.engines.rate_program``. What it prints is checked here, and kept until the device, its
software or the number of threads changes.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import Callable, Sequence

from potluck.errors import PotluckError
from potluck.probe import self_test
from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildAnswer, ChildFailure, ChildOutcome, Failure, run_child
from potluck.probe.child_output import one_line
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.interfaces import interface_argument, interface_details
from potluck.probe.memory import available_memory
from potluck.probe.quarantine import run_unless_quarantined
from potluck.types.hardware import (
    BackendSpec,
    Device,
    DeviceKind,
    Figure,
    Figures,
    Origin,
    Rates,
    Trial,
)

_log = logging.getLogger(__name__)

_FIGURES = tuple(field.name for field in dataclasses.fields(Figures))
_RATES = tuple(field.name for field in dataclasses.fields(Rates))

_MAX_RESIDENT_BYTES = 1 << 30
"""What a child may hold besides weights to measure with: a CUDA or OpenCL context takes some
hundreds of MB, NumPy and the core 40."""

_MEASURE_SECONDS = 20.0
"""Eight times what it should take on a CPU: a loaded machine is slow."""
_MEASURE_SECONDS_WITH_COMPILER = 120.0
"""For backends that compile for their device. tinygrad takes 11 s of a server's core for that, and
boards have cores of a quarter of the speed or less; the driver's compiler comes on top."""
_TURN_SECONDS = _MEASURE_SECONDS_WITH_COMPILER + 5
"""As long as another that hangs may hold it, so that what it met is known afterwards."""


def cached_measurement(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    kernel_release: str,
    num_threads: int,
    cache: ProbeCache,
) -> Trial | None:
    """``trial`` with what was measured with as many threads; None if nothing was."""
    if not trial.works:
        return None
    key = _measurement_key(spec, device, trial, kernel_release, num_threads)
    return _with_measured(trial, cache.get(key))


def measure_backend(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    kernel_release: str,
    num_threads: int,
    cache: ProbeCache,
    retry: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Trial:
    """``trial`` with figures and rates of its fastest variant, from the cache or measured anew.

    One process at a time measures: their figures would be wrong together. Who has waited takes
    what the other has found. ``retry`` measures again whatever is known. A trial that does not
    work is not measured. Where measuring fails, ``trial`` comes back with the reason as the source
    of its unknown figures and rates.
    """
    if not trial.works:
        return trial
    key = _measurement_key(spec, device, trial, kernel_release, num_threads)
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
            _log.warning("%s could not be measured: %s", trial.unit_id, outcome.reason)
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
            failure=Failure.RUBBISH,
            reason="its figures are not positive numbers with sources",
            seconds=outcome.seconds,
        )
    return outcome


def _measure_seconds(spec: BackendSpec, device: Device) -> float:
    has_compiler = spec.is_software or device.kind is not DeviceKind.CPU
    return _MEASURE_SECONDS_WITH_COMPILER if has_compiler else _MEASURE_SECONDS


def _measurement_key(
    spec: BackendSpec, device: Device, trial: Trial, kernel_release: str, num_threads: int
) -> str:
    """Of the host too: equal machines may share a home, and differ in how memory is fitted."""
    subject = f"measure/{spec.name}/{trial.variants[-1]}/{num_threads}/{os.uname().nodename}"
    software = installed_software(kernel_release, spec.packages)
    return fingerprint(subject, (device,), software, details=interface_details(trial.interface))


def _with_measured(trial: Trial, document: dict[str, object] | None) -> Trial | None:
    """``trial`` with what a child's or the cache's document has; None if anything of it is wrong.

    What a backend does not give is unknown.
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
    """Measured figures by name; None unless all are positive, have a source and a known name."""
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
    """What is free on the device, or where nothing says so the least that anything has."""
    free = [] if device.memory.free_bytes is None else [device.memory.free_bytes]
    if device.memory.is_shared:
        try:
            free.append(available_memory().bytes)
        except PotluckError as error:  # no /proc
            _log.info("%s", error.message)
    return min(free, default=1 << 30)
