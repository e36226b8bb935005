"""Backends that were tried and did not work, and devices that are not touched any more."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import KERNEL_LOG, Case
from potluck.probe.doctor.finding import Finding, Severity

_WAIT = "potluck probe --wait"
_RETRY = "potluck probe --retry"
_NOT_TRIED = "not tried again"
"""How the probe says that something is in quarantine."""


def failed_trials(case: Case) -> Iterator[Finding]:
    """A unit whose self-test failed; not where a device's own problem, or a package or library
    that the backend lacks, explains that.
    """
    lacking = {backend.name for backend in case.lacking_backends} | case.unloadable_backends
    explained = {device.device_id for device in case.report.devices if device.problem}
    working = {trial.device_id for trial in case.report.trials if trial.works}
    for trial in case.report.trials:
        if trial.works or trial.device_id in explained or trial.backend in lacking:
            continue
        if case.hindrances(trial):
            continue
        if trial.is_pending:
            yield Finding(
                check="deadline",
                severity=Severity.NOTE,
                message=f"{trial.unit_id} is not tested yet: {trial.reason}",
                command=_WAIT,
                device_id=trial.device_id,
            )
            continue
        yield Finding(
            check="self-test",
            severity=Severity.NOTE if trial.device_id in working else Severity.PREVENTS,
            message=f"{trial.unit_id} does not work: {trial.reason}",
            command=_RETRY,
            details="tries again, also what is in quarantine",
            device_id=trial.device_id,
        )


def silent_layers(case: Case) -> Iterator[Finding]:
    """A vendor's library that is in quarantine, and what did not answer in time."""
    for layer in case.report.layers:
        for problem in layer.problems:
            is_quarantined = _NOT_TRIED in problem
            is_late = layer.is_pending and problem == layer.problems[-1]
            if is_quarantined or is_late:
                yield Finding(
                    check="quarantine" if is_quarantined else "deadline",
                    severity=Severity.NOTE,
                    message=f"{layer.layer}: {problem}",
                    command=_RETRY if is_quarantined else _WAIT,
                    details=""
                    if is_quarantined
                    else f"the kernel's log may say more: {KERNEL_LOG}",
                )
