"""Checks for backends that were not tested or failed, and devices in quarantine."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.probe.doctor.case import KERNEL_LOG, Case, Finding, Severity, title
from potluck.probe.trials.running import is_tried_on

_WAIT = "potluck probe --wait"
_RETRY = "potluck probe --retry"
_NOT_TRIED = "not tried again"
"""How the probe's messages mark quarantined items."""


def failed_trials(case: Case) -> Iterator[Finding]:
    """Check for units whose self-test failed, unless a problem of the device, or a package or
    library that the backend lacks, explains the failure.
    """
    lacking = {backend.name for backend in case.lacking_backends} | case.unloadable_backends
    explained = {device.device_id for device in case.report.devices if device.problem}
    working = {trial.device_id for trial in case.report.trials if trial.works}
    for trial in case.report.trials:
        if trial.works or trial.device_id in explained or trial.backend in lacking:
            continue
        if case.blocking_libraries(trial):
            continue
        if trial.is_pending:
            yield Finding(
                check="deadline",
                severity=Severity.NOTE,
                message=f"{trial.unit_id} has not been tested yet: {trial.reason}",
                command=_WAIT,
                device_id=trial.device_id,
            )
            continue
        yield Finding(
            check="self-test",
            severity=Severity.NOTE if trial.device_id in working else Severity.PREVENTS,
            message=f"{trial.unit_id} does not work: {trial.reason}",
            command=_RETRY,
            details="retries all tests, including those of quarantined units",
            device_id=trial.device_id,
        )


def silent_layers(case: Case) -> Iterator[Finding]:
    """Check for vendor libraries that are in quarantine or did not respond in time."""
    for detector in case.report.detectors:
        for problem in detector.problems:
            is_quarantined = _NOT_TRIED in problem
            is_late = detector.is_pending and problem == detector.problems[-1]
            if is_quarantined or is_late:
                yield Finding(
                    check="quarantine" if is_quarantined else "deadline",
                    severity=Severity.NOTE,
                    message=f"{detector.detector}: {problem}",
                    command=_RETRY if is_quarantined else _WAIT,
                    details=""
                    if is_quarantined
                    else f"the kernel log may have details: {KERNEL_LOG}",
                )


def missing_packages(case: Case) -> Iterator[Finding]:
    """Check for GPUs that could be used if an extra of Potluck were installed."""
    for extra in dict.fromkeys(backend.extra for backend in case.lacking_backends):
        backends = [each for each in case.lacking_backends if each.extra == extra]
        devices = [
            device
            for device in case.accelerators
            if not device.problem and any(is_tried_on(each, device) for each in backends)
        ]
        packages = {name for each in backends for name in each.packages}
        missing = [name for name in case.missing_packages if name in packages]
        if devices:
            yield Finding(
                check="package",
                severity=case.severity(devices[0]),
                message=f"{', '.join(map(title, devices))} cannot be used until"
                f" {', '.join(missing)} is installed",
                command=f"pip install 'potluck[{extra}]'",
                device_id=devices[0].device_id,
            )
