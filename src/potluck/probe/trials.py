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
    See ``potluck.probe.measuring``.

DEVICE is the device's id. INTERFACE is what it is to be reached by, ``api=address``, or ``-`` for a
backend that needs none (``potluck.probe.interfaces``). A device with several of a kind is tried
through each until one works.

What a child prints is compared and checked here, so that a backend that lies is caught. Results are
kept, right ones and wrong ones, until the device or its software changes. Failures are not: those
that are dangerous are in quarantine, and all others may be cured at any time.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from potluck.probe import self_test
from potluck.probe.cache import ProbeCache
from potluck.probe.child import ChildAnswer, ChildFailure, ChildOutcome, Failure, run_child
from potluck.probe.child_output import one_line
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.interfaces import interface_argument, interface_details, usable_interfaces
from potluck.probe.quarantine import run_unless_quarantined
from potluck.types.hardware import BackendSpec, Device, Interface, Trial
from potluck.types.unit import Fault

_MAX_RESIDENT_BYTES = 1 << 30
"""What a child may hold: a CUDA or OpenCL context takes some hundreds of MB, NumPy and the core
40."""

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
    time_left = TimeLeft(deadline_seconds)
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
            time_left=time_left.share(len(interfaces) - number),
        ).trial
        if trial.works:
            return dataclasses.replace(trial, reason=_reason([*failed, trial]))
        if trial.is_pending:
            return trial
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


class TimeLeft:
    """What several children may use together, in seconds without waits for a CPU."""

    def __init__(self, seconds: float, whole: TimeLeft | None = None) -> None:
        self.seconds = seconds
        self._whole = whole

    def share(self, number: int) -> TimeLeft:
        """One of ``number`` equal shares; what is spent of it is spent of this."""
        return TimeLeft(self.seconds / number, self)

    def spend(self, seconds: float) -> None:
        """A child has used ``seconds``."""
        self.seconds = max(0.0, self.seconds - seconds)
        if self._whole is not None:
            self._whole.spend(seconds)


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
    time_left: TimeLeft,
) -> Tried:
    """Try one interface, as ``try_backend`` tries all.

    A variant that crashes is told from those that work by running each in a child of its own.
    """
    deadline_seconds = time_left.seconds
    key = trial_key(spec, device, interface, kernel_release)
    known = None if retry else _kept_trial(spec, device, interface, cache.get(key))
    if known is not None:
        return Tried(trial=known, fault=None if known.works else Fault.WRONG)
    crashed: dict[str, str] = {}
    results: dict[str, object] = {}
    subject = (device.device_id, interface_argument(interface))

    def test() -> ChildOutcome:
        outcome = _run(spec, ("self-test", *subject), time_left)
        if not _has_crashed(outcome):
            return outcome
        variants = _variants(_run(spec, ("variants", *subject), time_left))
        if len(variants) == 1:
            return outcome
        for number, variant in enumerate(variants):
            share = time_left.share(len(variants) - number)
            own = _run(spec, ("self-test", *subject, variant), share)
            if isinstance(own, ChildAnswer):
                results.update(_results(own))
            elif own.failure is Failure.STARVED:
                return own
            else:
                crashed[variant] = own.reason
        return ChildAnswer(document={"results": results}, seconds=0) if results else outcome

    outcome = run_unless_quarantined(
        cache, key, test, retry=retry, deadline_seconds=deadline_seconds
    )
    if isinstance(outcome, ChildFailure) and outcome.failure is Failure.STARVED:
        return Tried(trial=pending_trial(spec, device, outcome.reason, interface), fault=None)
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
    return fingerprint(
        f"trial/{spec.name}", (device,), software, details=interface_details(interface)
    )


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


def pending_trial(
    spec: BackendSpec, device: Device, reason: str, interface: Interface | None = None
) -> Trial:
    """A trial that has not come to an end, for ``reason``."""
    return dataclasses.replace(failed_trial(spec, device, reason, interface), is_pending=True)


def _run(spec: BackendSpec, arguments: tuple[str, ...], time_left: TimeLeft) -> ChildOutcome:
    outcome = run_child(
        spec.module,
        arguments,
        deadline_seconds=time_left.seconds,
        max_resident_bytes=_MAX_RESIDENT_BYTES,
    )
    time_left.spend(outcome.seconds)
    return outcome


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
