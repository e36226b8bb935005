"""Backends tried out on devices: a unit exists only after its numbers were right.

A backend's module is run as a child process, ``python -m MODULE COMMAND DEVICE …``, and prints one
JSON object (``potluck.probe.child``):

``self-test DEVICE INTERFACE [VARIANT …]``
    ``{"results": {VARIANT: RESULTS, …}}``, slowest first; RESULTS as ``potluck.probe.self_test``
    says. Variants are a CPU's instruction sets or the like; a backend without any has one of a
    name of its choice. Without names it runs all that the device has.
``variants DEVICE INTERFACE``
    ``{"variants": [VARIANT, …]}``, slowest first, found without running any of them. Asked only
    when a self-test has crashed, to find out which of them it was.
``measure DEVICE INTERFACE VARIANT NUM_THREADS MAX_WEIGHTS_BYTES``
    ``{"figures": {NAME: {"value": …, "source": …}, …}, "rates": {…}}`` with the names of
    ``Figures`` and of ``Rates``; rates are those of ``potluck.engines.rate_program``.

DEVICE is the device's id. INTERFACE is what it is to be reached by, ``api=address``, or ``-`` for a
backend that needs none (``potluck.probe.interfaces``). A device with several of a kind is tried
through each until one works.

What a child prints is compared and checked here, so that a backend that lies is caught. Results are
kept, right ones and wrong ones, until the device or its software changes. Failures are not: those
that are dangerous are in quarantine, and all others may be cured at any time.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from potluck.errors import PotluckError
from potluck.probe import self_test
from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildAnswer, ChildFailure, ChildOutcome, Failure, run_child
from potluck.probe.child_output import one_line
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.interfaces import interface_argument, usable_interfaces
from potluck.probe.memory import available_memory
from potluck.probe.quarantine import run_unless_quarantined
from potluck.types.hardware import (
    BackendSpec,
    Device,
    DeviceKind,
    Figure,
    Figures,
    Interface,
    Origin,
    Rates,
    Trial,
)
from potluck.types.unit import Fault

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

_FAULTS = {
    Failure.CRASHED: Fault.DRIVER,
    Failure.TOO_BIG: Fault.DRIVER,
    Failure.HUNG: Fault.HUNG,
}
"""How a child's end is called where the unit has worked before."""


def is_tried_on(
    spec: BackendSpec,
    device: Device,
    *,
    allow_software: bool = False,
    asked_backend: str | None = None,
) -> bool:
    """Whether a backend is for devices of this kind and make, and can reach this one.

    What only plays a GPU, device or backend, is tried with ``allow_software``, or where the user
    asks for the backend by its name.
    """
    is_software = device.is_software or spec.is_software
    return (
        device.kind in spec.kinds
        and (not spec.makes or device.make in spec.makes)
        and bool(usable_interfaces(spec, device))
        and (not is_software or allow_software or asked_backend == spec.name)
    )


def try_backend(
    spec: BackendSpec,
    device: Device,
    *,
    kernel_release: str,
    cache: ProbeCache,
    retry: bool = False,
    deadline_seconds: float = 30.0,
) -> Trial:
    """Whether ``spec`` computes rightly on ``device``, from the cache or by the self-test.

    ``retry`` tests again whatever is known. The first interface through which it works is the
    trial's; what failed before it is in the reason. The deadline is that of all children together.
    """
    end = time.monotonic() + deadline_seconds
    if device.problem:
        return failed_trial(spec, device, device.problem)
    if lack := _lack(spec):
        return failed_trial(spec, device, lack)
    interfaces = usable_interfaces(spec, device)
    failed: list[Trial] = []
    for number, interface in enumerate(interfaces):
        trial = try_through(
            spec,
            device,
            interface,
            kernel_release=kernel_release,
            cache=cache,
            retry=retry,
            deadline_seconds=_seconds_until(end) / (len(interfaces) - number),
        ).trial
        if trial.works:
            return dataclasses.replace(trial, reason=_reason([*failed, trial]))
        failed.append(trial)
    if not failed:
        return failed_trial(spec, device, f"the device has no interface of the kind {spec.api}")
    return dataclasses.replace(failed[0], reason=_reason(failed))


def _lack(spec: BackendSpec) -> str:
    """What a backend needs that is not installed; no child need be started to find that out."""
    if not spec.extra:
        return ""
    for name, version in installed_software("", spec.packages).packages:
        if not version:
            return f"{name} is not installed: pip install 'potluck[{spec.extra}]'"
    return ""


def _reason(trials: list[Trial]) -> str:
    """What went wrong, of each interface where there are several."""
    reasons = [
        trial.reason
        if trial.interface is None or len(trials) == 1
        else f"through {trial.interface.address}: {trial.reason}"
        for trial in trials
        if trial.reason
    ]
    return one_line("; ".join(reasons))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A trial. ``fault`` is what one that failed shows of a unit that worked, if anything."""

    trial: Trial
    fault: Fault | None


def try_through(
    spec: BackendSpec,
    device: Device,
    interface: Interface | None,
    *,
    kernel_release: str,
    cache: ProbeCache,
    retry: bool,
    deadline_seconds: float,
) -> Tried:
    """Try one interface, as ``try_backend`` tries all.

    A variant that crashes is told from those that work by running each in a child of its own.
    """
    end = time.monotonic() + deadline_seconds
    key = trial_key(spec, device, interface, kernel_release)
    known = None if retry else _kept_trial(spec, device, interface, cache.get(key))
    if known is not None:
        return Tried(trial=known, fault=None if known.works else Fault.WRONG)
    crashed: dict[str, str] = {}
    results: dict[str, object] = {}
    subject = (device.device_id, interface_argument(interface))

    def test() -> ChildOutcome:
        outcome = _run(spec, ("self-test", *subject), deadline_seconds)
        if not _has_crashed(outcome):
            return outcome
        variants = _variants(_run(spec, ("variants", *subject), _seconds_until(end)))
        if len(variants) == 1:
            return outcome
        for number, variant in enumerate(variants):
            share = _seconds_until(end) / (len(variants) - number)
            own = _run(spec, ("self-test", *subject, variant), share)
            if isinstance(own, ChildAnswer):
                results.update(_results(own))
            else:
                crashed[variant] = own.reason
        return ChildAnswer(document={"results": results}, seconds=0) if results else outcome

    outcome = run_unless_quarantined(
        cache, key, test, retry=retry, deadline_seconds=deadline_seconds
    )
    if isinstance(outcome, ChildFailure):
        cache.remove(key)
        return Tried(
            trial=failed_trial(spec, device, outcome.reason, interface),
            fault=_FAULTS.get(outcome.failure),
        )
    trial = _judged(spec, device, interface, _results(outcome), crashed)
    cache.put(key, {"works": trial.works, "reason": trial.reason, "variants": list(trial.variants)})
    return Tried(trial=trial, fault=None if trial.works else Fault.WRONG)


def trial_key(
    spec: BackendSpec, device: Device, interface: Interface | None, kernel_release: str
) -> str:
    """What the result of a trial is kept under."""
    software = installed_software(kernel_release, spec.packages)
    return fingerprint(f"trial/{spec.name}", (device,), software, details=_details(interface))


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


def _judged(
    spec: BackendSpec,
    device: Device,
    interface: Interface | None,
    results: dict[str, object],
    crashed: dict[str, str],
) -> Trial:
    """The verdict over the numbers of all variants. Pure."""
    problems = dict(crashed)
    passed = []
    for variant, numbers in results.items():
        problem = self_test.deviation(numbers)
        if problem:
            problems[variant] = f"wrong numbers: {problem}"
        else:
            passed.append(variant)
    if not results:
        problems["self-test"] = "printed no results"
    return Trial(
        device_id=device.device_id,
        backend=spec.name,
        works=bool(passed),
        reason=one_line("; ".join(f"{variant}: {why}" for variant, why in problems.items())),
        variants=tuple(passed),
        interface=interface,
    )


def failed_trial(
    spec: BackendSpec, device: Device, reason: str, interface: Interface | None = None
) -> Trial:
    """A trial of a backend that does not work there."""
    return Trial(
        device_id=device.device_id,
        backend=spec.name,
        works=False,
        reason=reason,
        interface=interface,
    )


def _run(spec: BackendSpec, arguments: tuple[str, ...], deadline_seconds: float) -> ChildOutcome:
    return run_child(
        spec.module,
        arguments,
        deadline_seconds=deadline_seconds,
        max_resident_bytes=_MAX_RESIDENT_BYTES,
    )


def _seconds_until(end: float) -> float:
    return max(0.0, end - time.monotonic())


def _has_crashed(outcome: ChildOutcome) -> bool:
    return isinstance(outcome, ChildFailure) and outcome.failure is Failure.CRASHED


def _variants(outcome: ChildOutcome) -> list[str]:
    """What variants the backend says it has; none if it does not say."""
    named = outcome.document.get("variants") if isinstance(outcome, ChildAnswer) else None
    return [name for name in named if isinstance(name, str)] if isinstance(named, list) else []


def _results(answer: ChildAnswer) -> dict[str, object]:
    results = answer.document.get("results")
    return results if isinstance(results, dict) else {}


def _kept_trial(
    spec: BackendSpec,
    device: Device,
    interface: Interface | None,
    kept: dict[str, object] | None,
) -> Trial | None:
    match kept:
        case {"works": bool(works), "reason": str(reason), "variants": list(variants)} if (
            works == bool(variants)
        ):
            return Trial(
                device_id=device.device_id,
                backend=spec.name,
                works=works,
                reason=reason,
                variants=tuple(str(variant) for variant in variants),
                interface=interface,
            )
    return None


def _measure_seconds(spec: BackendSpec, device: Device) -> float:
    has_compiler = spec.is_software or device.kind is not DeviceKind.CPU
    return _MEASURE_SECONDS_WITH_COMPILER if has_compiler else _MEASURE_SECONDS


def _measurement_key(
    spec: BackendSpec, device: Device, trial: Trial, kernel_release: str, num_threads: int
) -> str:
    """Of the host too: equal machines may share a home, and differ in how memory is fitted."""
    subject = f"measure/{spec.name}/{trial.variants[-1]}/{num_threads}/{os.uname().nodename}"
    software = installed_software(kernel_release, spec.packages)
    return fingerprint(subject, (device,), software, details=_details(trial.interface))


def _details(interface: Interface | None) -> tuple[str, ...]:
    """What of an interface makes a result old when it changes: all of it, as its driver's version
    stands in its description.
    """
    return () if interface is None else (interface.api, interface.address, interface.description)


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
