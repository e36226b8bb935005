"""Runs all checks, one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from potluck.probe.doctor import (
    builds,
    device_files,
    drivers,
    memory,
    network,
    opencl,
    settings,
    trials,
)
from potluck.probe.doctor.case import KERNEL_LOG, Case, Finding, Severity, title

_log = logging.getLogger(__name__)

Check = Callable[[Case], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    drivers.missing_drivers,
    drivers.nvidia_versions,
    device_files.forbidden_files,
    device_files.absent_files,
    opencl.unregistered_mali,
    opencl.broken_drivers,
    trials.missing_packages,
    builds.unloadable_packages,
    trials.failed_trials,
    trials.silent_layers,
    opencl.only_software,
    settings.slow_governor,
    memory.unknown_memory,
    memory.low_limit,
    memory.swap,
    memory.small_shared_memory,
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
