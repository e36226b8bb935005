"""Weigh the findings about a wheel's files by what importing its packages loads.

A file that would be refused, but that importing the wheel does not load, is a limit of the wheel.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import FileReport
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host, HostPython
from potluck.portability.instructions.cpu_needs import ILLEGAL_INSTRUCTION
from potluck.portability.linking.file_findings import ALLOCATOR_PAGE_SIZE

_ARCHITECTURES = {"i686": "i386", "armv7l": "arm", "ppc64le": "powerpc64le"}
"""Names in these suffixes that differ from those of ``uname -m`` (Debian's multiarch tuples)."""


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


def file_of_module(paths: Sequence[str], host: Host) -> str | None:
    """Return the file that the host's Python loads of those of one module; None if that is
    unknown, or if Python itself loads none of several.

    CPython's own loader only knows ``NAME.cpython-311-x86_64-linux-gnu.so``, ``NAME.abi3.so`` and
    ``NAME.so``, in this order (Python/dynload_shlib.c; ``importlib.machinery.EXTENSION_SUFFIXES``).
    Files with other names, such as ``MPI.mpich.cpython-311-x86_64-linux-gnu.so``, are loaded by
    code of the package, which may choose among them.
    """
    if len(paths) == 1:
        return paths[0]
    python = host.python
    if python is None or python.implementation != "cpython":
        return None
    for suffix in _suffixes(python, host.machine):
        for path in paths:
            if re.fullmatch(suffix, posixpath.basename(path).partition(".")[2]):
                return path
    return None


def is_for_other_python(path: str, host: Host) -> bool:
    """Return whether the name of an extension module says that it is for a CPython other than the
    host's.
    """
    suffix = posixpath.basename(path).partition(".")[2]
    python = host.python
    if python is None or not re.fullmatch(r"cpython-\d+\w*-[\w-]+\.so", suffix):
        return False
    is_cpython = python.implementation == "cpython"
    return not (is_cpython and re.fullmatch(next(_suffixes(python, host.machine)), suffix))


def _suffixes(python: HostPython, machine: str) -> Iterator[str]:
    """Yield patterns of what follows the module's name and a dot, in the order of precedence."""
    abi = python.name.replace(".", "")
    architecture = re.escape(_ARCHITECTURES.get(machine, machine))
    yield rf"cpython-{abi}m?-{architecture}-linux-\w+\.so"  # "m" up to Python 3.7
    if not python.is_free_threaded:
        yield r"abi3\.so"
    if python.version >= (3, 15):
        yield r"abi3t\.so"
    yield r"so"
