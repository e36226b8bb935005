"""Runs all checks, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from potluck.probe.doctor import builds, device_files, network, opencl, settings
from potluck.probe.doctor.case import KERNEL_LOG, Case, Finding, Severity, title
from potluck.probe.trials.running import is_tried_on

_log = logging.getLogger(__name__)

Check = Callable[[Case], Iterator[Finding]]

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


CHECKS: tuple[Check, ...] = (
    device_files.missing_drivers,
    device_files.nvidia_versions,
    device_files.forbidden_files,
    device_files.absent_files,
    opencl.unregistered_mali,
    opencl.broken_drivers,
    missing_packages,
    builds.unloadable_packages,
    failed_trials,
    silent_layers,
    opencl.only_software,
    settings.slow_governor,
    settings.unknown_memory,
    settings.low_limit,
    settings.swap,
    settings.small_shared_memory,
    settings.folders,
    network.taken_ports,
    network.local_multicast,
    network.no_other_node,
    network.silent_nodes,
    network.clocks,
    network.blocked_ports,
    network.blocked_multicast,
)

RESORTS: tuple[Check, ...] = (builds.hindering_libraries, opencl.missing_drivers)
"""Checks for devices that no other check explains, so that one cause produces one finding."""

_ORDER = tuple(Severity)


def examine(case: Case, checks: Sequence[Check] = CHECKS) -> tuple[Finding, ...]:
    """Return all findings, most severe first. A check that fails is reported as a finding."""
    findings = [finding for check in checks for finding in _findings(check, case)]
    explained = {finding.device_id for finding in findings}
    for resort in RESORTS:
        found = _findings(resort, case)
        findings += [finding for finding in found if finding.device_id not in explained]
    findings += _unexplained(case, findings)
    if case.user.is_root:
        findings = [_as_root(finding) for finding in findings]
    return tuple(sorted(findings, key=lambda finding: _ORDER.index(finding.severity)))


def _findings(check: Check, case: Case) -> list[Finding]:
    try:
        return list(check(case))
    except Exception as error:  # noqa: BLE001 - a strange machine must not hide the other findings
        _log.debug("%s failed", check.__name__, exc_info=error)
        message = f"the check {check.__name__} failed: {type(error).__name__}: {error}"
        return [
            Finding(
                check="doctor",
                severity=Severity.NOTE,
                message=" ".join(message.split()),
                command="potluck --debug doctor",
            )
        ]


def _unexplained(case: Case, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Return devices with a problem that no check explains, except those that are useless here."""
    explained = {finding.device_id for finding in findings}
    for device in case.report.devices:
        is_wanted = case.severity(device) is Severity.PREVENTS
        if device.problem and is_wanted and device.device_id not in explained:
            yield Finding(
                check="device",
                severity=Severity.PREVENTS,
                message=f"{title(device)}: {device.problem}",
                command=KERNEL_LOG,
                details="the kernel's messages about it",
                device_id=device.device_id,
            )


def _as_root(finding: Finding) -> Finding:
    """Remove sudo for root, who does not need it; boards often lack it."""
    return replace(finding, command=finding.command.replace("sudo ", ""))
