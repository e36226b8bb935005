"""What ``potluck wheel check`` prints: the document, and the same for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import potluck
from potluck.cli.cluster_hosts import SilentNode
from potluck.cli.tables import table
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.host import Host
from potluck.portability.promises import Minimum
from potluck.portability.wheel_report import HostReport, WheelReport
from potluck.quantities import format_few

_SHOWN_FILES = 3
"""Of those that one thing is said of."""


def wheel_document(
    reports: Sequence[WheelReport], hosts: Sequence[Host], silent: Sequence[SilentNode]
) -> dict[str, Any]:
    """The document of ``potluck wheel check --json`` (schema ``potluck.wheel/1``)."""
    return {
        "schema": "potluck.wheel/1",
        "version": potluck.__version__,
        "hosts": [_host(each) for each in hosts],
        "silent": [{"node_id": each.node_id, "problem": each.problem} for each in silent],
        "wheels": [_wheel(each) for each in reports],
    }


def _host(host: Host) -> dict[str, Any]:
    python = host.python
    return {
        "name": host.name,
        "origin": host.origin,
        "machine": host.machine,
        "libc": f"{host.libc} {host.libc_version[0]}.{host.libc_version[1]}",
        "python": None if python is None else ".".join(map(str, python.version)),
    }


def _wheel(report: WheelReport) -> dict[str, Any]:
    distribution = report.distribution
    return {
        "file": report.file,
        "name": None if distribution is None else distribution.name,
        "version": None if distribution is None else distribution.version,
        "tags": [] if distribution is None else list(distribution.tags),
        "promise": report.promise.value,
        "minima": [
            {
                "machine": each.machine,
                "platform": each.platform,
                "because": [{"version": version, "file": file} for version, file in each.because],
                "libraries_outside": list(each.outside),
            }
            for each in report.minima
        ],
        "hosts": [_on_host(each) for each in report.hosts],
    }


def _on_host(report: HostReport) -> dict[str, Any]:
    return {
        "host": report.host,
        "verdict": report.verdict.value,
        "is_installed": report.is_installed,
        "refusal": None if report.refusal is None else _finding(report.refusal),
        "files": [
            {
                "path": each.path,
                "machine": each.machine or None,
                "verdict": each.verdict.value,
                "opens_alone": each.opens_alone,
                "findings": [_finding(finding) for finding in each.findings],
            }
            for each in report.files
        ],
        "features": [_finding(each) for each in report.features],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "message": finding.message,
        "file": finding.file or None,
        "library": finding.library or None,
        "symbol": finding.symbol or None,
        "feature": finding.feature or None,
        "way_out": finding.way_out or None,
    }


def wheel_lines(report: WheelReport) -> Iterator[str]:
    """One wheel: its promise, then the hosts; the reasons in full where there is one host."""
    yield report.file
    for minimum in report.minima:
        yield f"  {_promise_line(report, minimum)}"
        if minimum.outside:
            yield f"  no policy has {', '.join(minimum.outside)}, which it needs"
    if len(report.hosts) == 1:
        yield from _host_lines(report.hosts[0])
        return
    rows = [("HOST", "INSTALLS", "VERDICT", "BECAUSE")]
    rows += [_row(each) for each in report.hosts]
    for line in table(rows):
        yield f"  {line}"


def _promise_line(report: WheelReport, minimum: Minimum) -> str:
    versions = ", ".join(dict.fromkeys(version for version, _ in minimum.because))
    because = f" ({versions})" if versions else ""
    needs = f"needs {minimum.platform}{because}"
    if report.distribution is None:
        return needs
    platforms = dict.fromkeys(tag.rpartition("-")[2] for tag in report.distribution.tags)
    return f"tagged {', '.join(platforms)}; {needs}: it {report.promise.value}"


def _row(report: HostReport) -> tuple[str, str, str, str]:
    reasons = [each for each in report.findings if each.severity is not Severity.NOTE]
    reason = reasons[0] if reasons else report.refusal
    because = "" if reason is None else f"{reason.file}: {reason.message}".removeprefix(": ")
    return report.host, "yes" if report.is_installed else "no", _verdict(report), because


def _verdict(report: HostReport) -> str:
    """``loads without`` goes on with what it lacks."""
    features = dict.fromkeys(
        each.feature for each in report.findings if each.severity is Severity.LIMIT if each.feature
    )
    lacking = f" {', '.join(features)}" if report.verdict is Verdict.LOADS_WITHOUT else ""
    return f"{report.verdict.value}{lacking}"


def _host_lines(report: HostReport) -> Iterator[str]:
    installs = "installs" if report.is_installed else "does not install"
    yield f"  on {report.host}: {installs}, {_verdict(report)}"
    if report.refusal is not None:
        yield f"    {report.refusal.message}"
        yield f"      way out: {report.refusal.way_out}"
    grouped: dict[Finding, list[str]] = {}
    for finding in report.findings:
        said = Finding(
            code=finding.code,
            severity=finding.severity,
            message=finding.message,
            way_out=finding.way_out,
        )
        grouped.setdefault(said, []).append(finding.file)
    for said, files in grouped.items():
        yield f"    {said.severity.value}: {_files(files)}{said.message}"
        if said.way_out:
            yield f"      way out: {said.way_out}"


def _files(files: Sequence[str]) -> str:
    named = [each for each in files if each]
    return f"{format_few(named, _SHOWN_FILES)}: " if named else ""


def is_usable(reports: Sequence[WheelReport]) -> bool:
    """Whether each host takes one of these files, all of one project, and loads it."""
    return all(
        any(each.is_installed and each.verdict is not Verdict.WILL_NOT_LOAD for each in on_host)
        for on_host in zip(*(report.hosts for report in reports), strict=True)
    )
