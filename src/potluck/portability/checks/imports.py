"""Weigh the findings about a wheel's files by what importing its packages loads.

A file that would be refused, but that importing the wheel does not load, is a limit of the wheel.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import FileReport
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.instructions.cpu_needs import ILLEGAL_INSTRUCTION
from potluck.portability.linking.file_findings import ALLOCATOR_PAGE_SIZE
from potluck.portability.wheels.module_files import file_of_module, is_for_other_python


def weighed_by_imports(
    reports: tuple[FileReport, ...], wheel: PreparedWheel, host: Host
) -> tuple[FileReport, ...]:
    """Return the reports with fatal findings downgraded to limits for files that importing the
    wheel does not load, or need not load because another file of the same module loads, and to
    notes for files of other versions of Python.

    They stay fatal if it is unknown which files are loaded by imports.
    """
    if wheel.needs.imported is None:
        return reports
    by_path = {each.path: each for each in reports}
    explained: dict[str, str] = {}
    required: set[str] = set()
    for paths in wheel.needs.imported:
        chosen = file_of_module(paths, host)
        loading = [path for path in paths if _loads(by_path.get(path))]
        if chosen is not None:
            required.add(chosen)
        elif loading:
            instead = f"importing {wheel.label} can load {posixpath.basename(loading[0])} instead"
            explained |= dict.fromkeys(paths, instead)
        else:
            required |= set(paths)
            any_of = f"any one of the {len(paths)} files of this module is enough"
            explained |= dict.fromkeys(paths, any_of)
    unused = f"importing {wheel.label} does not load the file"
    weighed = []
    for each in reports:
        if each.path in required:
            text, severity = explained.get(each.path, ""), Severity.FATAL
        elif is_for_other_python(each.path, host):
            text, severity = "the file is for another version of Python", Severity.NOTE
        else:
            text, severity = explained.get(each.path, unused), Severity.LIMIT
        weighed.append(_explained(each, text, severity, wheel))
    return tuple(weighed)


def _loads(report: FileReport | None) -> bool:
    """Return whether a file is for the host's machine and has no fatal findings."""
    if report is None or report.opens_alone is None:
        return False
    return report.verdict is not Verdict.WILL_NOT_LOAD


def _explained(
    report: FileReport, text: str, severity: Severity, wheel: PreparedWheel
) -> FileReport:
    """Return the report whose fatal findings end with ``text`` and have ``severity``."""
    is_attempted = severity is Severity.LIMIT and report.path in wheel.needs.attempted
    return replace(
        report,
        findings=tuple(
            _explained_finding(each, text, severity)
            if each.severity is Severity.FATAL and not (is_attempted and _ends_process(each))
            else each
            for each in report.findings
        ),
    )


def _ends_process(finding: Finding) -> bool:
    """Return whether the process ends, which the importing module cannot tolerate."""
    return finding.code in (ALLOCATOR_PAGE_SIZE, ILLEGAL_INSTRUCTION)


def _explained_finding(finding: Finding, text: str, severity: Severity) -> Finding:
    feature = finding.feature
    if severity is Severity.LIMIT:
        feature = feature or posixpath.basename(finding.file)
    return replace(
        finding,
        severity=severity,
        message=f"{finding.message}; {text}" if text else finding.message,
        feature=feature,
        fix="" if severity is Severity.NOTE else finding.fix,
    )
