"""Run backends' self-tests on devices: a unit exists only if its results were correct.

A backend's module is run as a child process, ``python -m MODULE COMMAND DEVICE …``, and prints one
JSON object (``potluck.host.child``):

``self-test DEVICE INTERFACE [VARIANT …]``
    ``{"results": {VARIANT: RESULTS, …}}``, slowest first, with RESULTS as described in
    ``probe.cases.self_test``. Variants are, for example, a CPU's instruction sets; a backend
    without variants reports a single one with a name of its choice. Without VARIANT arguments, it
    runs all variants that the device supports.
``variants DEVICE INTERFACE``
    ``{"variants": [VARIANT, …]}``, slowest first, determined without running any of them. Used only
    after a self-test has crashed, to find out which variant crashed.
``measure DEVICE INTERFACE VARIANT NUM_THREADS MAX_WEIGHTS_BYTES``
    See ``potluck.probe.trials.measuring``.

DEVICE is the device's id. INTERFACE is the interface through which to use it, ``api=address``, or
``-`` for a backend that needs none (``probe.trials.interfaces``). A device with several interfaces
of a kind is tried through each until one works.

The output is validated here, not by the backend. Correct and wrong results are cached until the
device or its software changes. Failures are not cached: dangerous ones are quarantined, and all
others may be resolved at any time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from potluck.host.child import (
    ChildAnswer,
    ChildFailure,
    ChildOutcome,
    Failure,
    run_child,
)
from potluck.host.child_output import one_line
from potluck.probe.cache import ProbeCache
from potluck.probe.cases import self_test
from potluck.probe.fingerprint import fingerprint, installed_software
from potluck.probe.trials.interfaces import interface_argument, interface_details, usable_interfaces
from potluck.probe.trials.quarantine import is_quarantined, run_unless_quarantined
from potluck.types.backend import BackendSpec
from potluck.types.hardware import Device, Trial
from potluck.types.unit import Fault, Interface

_MAX_RESIDENT_BYTES = 1 << 30
"""Memory for a child: a CUDA or OpenCL context uses hundreds of MB, NumPy and the core 40."""

_FAULTS = {
    Failure.CRASHED: Fault.DRIVER,
    Failure.TOO_BIG: Fault.DRIVER,
    Failure.HUNG: Fault.HUNG,
}
"""The classification of a child's failure if the unit has worked before."""


def is_tried_on(
    spec: BackendSpec,
    device: Device,
    *,
    allow_software: bool = False,
    requested_backend: str | None = None,
) -> bool:
    """Return whether a backend supports devices of this kind and vendor, and can use this one.

    Emulated devices and backends are tried with ``allow_software``, or if the user requests the
    backend by name.
    """
    is_software = device.is_software or spec.is_software
    return (
        device.kind in spec.kinds
        and (not spec.makes or device.make in spec.makes)
        and bool(usable_interfaces(spec, device))
        and (not is_software or allow_software or requested_backend == spec.name)
    )


def try_backend(
    spec: BackendSpec,
    device: Device,
    *,
    cache: ProbeCache,
    retry: bool = False,
    deadline_seconds: float = 30.0,
) -> Trial:
    """Return whether ``spec`` computes correctly on ``device``, from the cache or by the self-test.

    ``retry`` always tests again. The trial has the first interface through which the backend works;
    its reason has the failures before that. The deadline is for all children together.
    """
    time_left = TimeLeft(deadline_seconds)
    if device.problem:
        return failed_trial(spec, device, device.problem)
    if lack := _lack(spec):
        return failed_trial(spec, device, lack)
    interfaces = usable_interfaces(spec, device)
    failed: list[Trial] = []
    for number, interface in enumerate(interfaces):
        trial, _ = _try_interface(
            spec,
            device,
            interface,
            cache=cache,
            retry=retry,
            time_left=time_left.share(len(interfaces) - number),
        )
        if trial.works:
            return dataclasses.replace(trial, reason=_reason([*failed, trial]))
        if trial.is_pending:
            return trial
        failed.append(trial)
    if not failed:
        return failed_trial(spec, device, f"the device has no {spec.api} interface")
    return dataclasses.replace(failed[0], reason=_reason(failed))


def _lack(spec: BackendSpec) -> str:
    """Return the package that a backend needs but that is not installed, without starting a
    child.
    """
    if not spec.extra:
        return ""
    for name, version in installed_software(spec.packages).packages:
        if not version:
            return f"{name} is not installed: pip install 'potluck[{spec.extra}]'"
    return ""


def _reason(trials: list[Trial]) -> str:
    """Return the failures, by interface if there are several."""
    reasons = [
        trial.reason
        if trial.interface is None or len(trials) == 1
        else f"through {trial.interface.address}: {trial.reason}"
        for trial in trials
        if trial.reason
    ]
    return one_line("; ".join(reasons))


class TimeLeft:
    """The total time that several children may use, in seconds, not counting waits for a CPU."""

    def __init__(self, seconds: float, whole: TimeLeft | None = None) -> None:
        self.seconds = seconds
        self._whole = whole

    def share(self, number: int) -> TimeLeft:
        """Return one of ``number`` equal shares; time spent from it is also spent from this one."""
        return TimeLeft(self.seconds / number, self)

    def spend(self, seconds: float) -> None:
        """Record that a child has used ``seconds``."""
        self.seconds = max(0.0, self.seconds - seconds)
        if self._whole is not None:
            self._whole.spend(seconds)


def _try_interface(
    spec: BackendSpec,
    device: Device,
    interface: Interface | None,
    *,
    cache: ProbeCache,
    retry: bool,
    time_left: TimeLeft,
) -> tuple[Trial, Fault | None]:
    """Try one interface, as ``try_backend`` does for all.

    Return the trial and, if it failed, the fault that this means for a unit that worked before. To
    identify a variant that crashes, each is run in a separate child.
    """
    deadline_seconds = time_left.seconds
    key = trial_key(spec, device, interface)
    # A unit that failed in use is in quarantine although it passed its self-test before, or passes
    # one that another process began before the fault.
    is_known = not retry and not is_quarantined(cache, key)
    known = _kept_trial(spec, device, interface, cache.get(key)) if is_known else None
    if known is not None:
        return known, None if known.works else Fault.WRONG
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
        return pending_trial(spec, device, outcome.reason, interface), None
    if isinstance(outcome, ChildFailure):
        cache.remove(key)
        trial = failed_trial(spec, device, outcome.reason, interface)
        return trial, _FAULTS.get(outcome.failure)
    trial = _judged(spec, device, interface, _results(outcome), crashed)
    cache.put(key, {"works": trial.works, "reason": trial.reason, "variants": list(trial.variants)})
    return trial, None if trial.works else Fault.WRONG


def trial_key(spec: BackendSpec, device: Device, interface: Interface | None) -> str:
    """Return the cache key of a trial's result, which also identifies a unit in the quarantine."""
    software = installed_software(spec.packages)
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
    """Return the verdict on the results of all variants. Pure."""
    problems = dict(crashed)
    passed = []
    for variant, numbers in results.items():
        problem = self_test.deviation(numbers)
        if problem:
            problems[variant] = f"wrong numbers: {problem}"
        else:
            passed.append(variant)
    if not results:
        problems["self-test"] = "it printed no results"
    reason = one_line("; ".join(f"{variant}: {why}" for variant, why in problems.items()))
    return _trial(spec, device, reason, interface, passed)


def failed_trial(
    spec: BackendSpec, device: Device, reason: str, interface: Interface | None = None
) -> Trial:
    """Return the trial of a backend that does not work on ``device``."""
    return _trial(spec, device, reason, interface, ())


def pending_trial(
    spec: BackendSpec, device: Device, reason: str, interface: Interface | None = None
) -> Trial:
    """Return a trial that did not finish, for ``reason``."""
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
    """Return the variants that the backend reports; empty if it reports none."""
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
            return _trial(spec, device, reason, interface, map(str, variants))
    return None


def _trial(
    spec: BackendSpec,
    device: Device,
    reason: str,
    interface: Interface | None,
    passed: Iterable[str],
) -> Trial:
    """Return the trial of a backend that works if any of its variants passed."""
    variants = tuple(passed)
    return Trial(
        device_id=device.device_id,
        backend=spec.name,
        works=bool(variants),
        reason=reason,
        variants=variants,
        interface=interface,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Retest:
    """A repeated self-test of a unit that worked before: ``problem`` is empty if it passed.

    ``fault`` classifies the failure. If it is None and there is a problem, the unit could not be
    tested, for example because the stage that runs on it uses its memory. If ``is_pending`` is set,
    the machine was too busy for the test to finish, and ``problem`` says so.
    """

    problem: str
    fault: Fault | None
    is_pending: bool = False


def retest(
    spec: BackendSpec,
    device: Device,
    trial: Trial,
    *,
    cache: ProbeCache,
    deadline_seconds: float,
) -> Retest:
    """Run the self-test of a unit again, through the interface with which ``trial`` passed.

    The result replaces the previous one.
    """
    tried, fault = _try_interface(
        spec,
        device,
        trial.interface,
        cache=cache,
        retry=True,
        time_left=TimeLeft(deadline_seconds),
    )
    problem = "" if tried.works else tried.reason
    return Retest(problem=problem, fault=fault, is_pending=tried.is_pending)
