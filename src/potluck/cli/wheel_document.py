"""The output of ``potluck wheel check``: the JSON document, and text for users."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from packaging.version import InvalidVersion, Version

import potluck
from potluck.cli.tables import table
from potluck.cli.wheel_hosts import SilentNode
from potluck.portability.checks.report import HostReport, WheelReport
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.linking.promises import Minimum, Promise
from potluck.types.document import Document, document_of
from potluck.types.quantities import format_count, format_few


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingRelease:
    """The newest release of a project that was found to work on a host, where the newest wheels do
    not.
    """

    project: str
    host: str
    version: str


class CheckedHost(Document, frozen=True, kw_only=True):
    """A host for which wheels are checked."""

    name: str
    origin: str
    """The source of its description."""
    machine: str
    """As reported by ``uname -m``."""
    libc: str
    """The C library with its version: ``glibc 2.36``."""
    python: str | None
    """The Python version that wheels are installed for; null if the wheel's is assumed."""


class FindingDocument(Document, frozen=True, kw_only=True):
    """A reason for a verdict."""

    code: str
    """The kind of finding, for example ``missing-version``."""
    severity: Severity
    message: str
    file: str | None
    """The file that it is about."""
    library: str | None
    symbol: str | None
    """The missing symbol, for example ``pow@GLIBC_2.29``."""
    feature: str | None
    """The feature that does not work because of it."""
    fix: str | None
    """A way to fix it."""


class CheckedFile(Document, frozen=True, kw_only=True):
    """An ELF file on a host."""

    path: str
    """Relative to ``site-packages``."""
    machine: str | None
    """Null if the file cannot be read."""
    verdict: Verdict
    opens_alone: bool | None
    """The dynamic linker can open it in a process that has opened nothing else; null for files for
    another machine."""
    findings: tuple[FindingDocument, ...]


class WheelOnHost(Document, frozen=True, kw_only=True):
    """A wheel on a host."""

    host: str
    verdict: Verdict
    is_installed: bool
    """Installers accept it, by its tags."""
    refusal: FindingDocument | None
    files: tuple[CheckedFile, ...]
    features: tuple[FindingDocument, ...]
    """Findings about the wheel as a whole."""


class NeededVersion(Document, frozen=True, kw_only=True):
    """A version of a library's symbols, and a file that needs it."""

    version: str
    file: str


class MinimumDocument(Document, frozen=True, kw_only=True):
    """The oldest manylinux policy that all files for a machine conform to."""

    machine: str
    platform: str
    """In the form of a tag; ``linux_…`` if a version is needed that no policy has."""
    because: tuple[NeededVersion, ...]
    """The versions that determine it."""
    libraries_outside: tuple[str, ...]
    """Needed libraries that no policy includes and no other wheel brings."""


class CheckedWheel(Document, frozen=True, kw_only=True):
    """A wheel, an ELF file or a directory."""

    file: str
    """Its name."""
    name: str | None
    """The project; null if it is not a wheel."""
    version: str | None
    tags: tuple[str, ...]
    """Each tag in its name."""
    promise: Promise
    """How the platform in its tags compares with the minima."""
    minima: tuple[MinimumDocument, ...]
    """For each machine that it has files for."""
    hosts: tuple[WheelOnHost, ...]
    """In the order of the document's hosts."""


class WheelDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck wheel check --json``."""

    schema: Literal["potluck.wheel/1"] = "potluck.wheel/1"
    version: str
    """The version of Potluck."""
    hosts: tuple[CheckedHost, ...]
    silent: tuple[SilentNode, ...]
    """With ``--cluster``: the nodes that did not describe their hosts."""
    wheels: tuple[CheckedWheel, ...]
    working_releases: tuple[WorkingRelease, ...]
    """For projects checked by name, and hosts where none of the wheels installs and loads."""


def wheel_document(
    reports: Iterable[WheelReport],
    hosts: Iterable[Host],
    silent: Iterable[SilentNode],
    releases: Iterable[WorkingRelease],
) -> WheelDocument:
    """Return the document of ``potluck wheel check --json``."""
    return WheelDocument(
        version=potluck.__version__,
        hosts=tuple(map(_host, hosts)),
        silent=tuple(silent),
        wheels=tuple(map(_wheel, reports)),
        working_releases=tuple(releases),
    )


def _host(host: Host) -> CheckedHost:
    python = None if host.python is None else host.python.version_text
    return document_of(CheckedHost, host, libc=host.libc_text, python=python)


def _wheel(report: WheelReport) -> CheckedWheel:
    distribution = report.distribution
    return document_of(
        CheckedWheel,
        report,
        name=None if distribution is None else distribution.name,
        version=None if distribution is None else distribution.version,
        tags=() if distribution is None else distribution.tags,
        minima=tuple(map(_minimum, report.minima)),
        hosts=tuple(map(_on_host, report.hosts)),
    )


def _minimum(minimum: Minimum) -> MinimumDocument:
    return document_of(
        MinimumDocument,
        minimum,
        because=tuple(NeededVersion(version=each, file=file) for each, file in minimum.because),
        libraries_outside=minimum.outside,
    )


def _on_host(report: HostReport) -> WheelOnHost:
    return document_of(
        WheelOnHost,
        report,
        refusal=None if report.refusal is None else _finding(report.refusal),
        files=tuple(
            document_of(
                CheckedFile, each, machine=each.machine or None, findings=_findings(each.findings)
            )
            for each in report.files
        ),
        features=_findings(report.features),
    )


def _findings(findings: Sequence[Finding]) -> tuple[FindingDocument, ...]:
    return tuple(map(_finding, findings))


def _finding(finding: Finding) -> FindingDocument:
    return document_of(
        FindingDocument,
        finding,
        file=finding.file or None,
        library=finding.library or None,
        symbol=finding.symbol or None,
        feature=finding.feature or None,
        fix=finding.fix or None,
    )


_SHOWN_FILES = 3
"""The number of files or features named in one message; the others are counted."""


def report_lines(groups: Sequence[Sequence[WheelReport]]) -> Iterator[str]:
    """Yield the wheels of each group, all of one project, and how much is left out.

    A host is left out of a wheel that is for another architecture and does not install there, if
    the group has a wheel for the host's. If it has none, the host is kept, to say why. A wheel
    without hosts is left out.
    """
    num_wheels = num_rows = 0
    for group in groups:
        for report in group:
            hosts = [each for each in report.hosts if not _is_other_platform(report, each, group)]
            if hosts:
                num_rows += len(report.hosts) - len(hosts)
                yield from _wheel_lines(replace(report, hosts=tuple(hosts)))
            else:
                num_wheels += 1
    counts = ((num_wheels, "wheel"), (num_rows, "row"))
    if left_out := [format_count(count, word) for count, word in counts if count]:
        yield f"not shown: {' and '.join(left_out)} for other architectures (--json includes them)"


def _is_other_platform(report: WheelReport, host: HostReport, group: Sequence[WheelReport]) -> bool:
    machines = _machines(report)
    return (
        bool(machines)
        and host.machine not in machines
        and not host.is_installed
        and any(host.machine in _machines(each) for each in group)
    )


def _machines(report: WheelReport) -> set[str]:
    """Return the architectures that a wheel has native files for."""
    return {each.machine for host in report.hosts[:1] for each in host.files if each.machine}


def _wheel_lines(report: WheelReport) -> Iterator[str]:
    """Yield one wheel: its promise, then the hosts; with a single host, the reasons in full."""
    yield report.file
    for minimum in report.minima:
        yield f"  {_promise_line(report, minimum)}"
        if minimum.outside:
            yield f"  no policy allows {', '.join(minimum.outside)}, which it needs"
    if len(report.hosts) == 1:
        yield from _host_lines(report.hosts[0])
        return
    rows = [("HOST", "INSTALLS", "VERDICT", "BECAUSE")]
    rows += [_row(each) for each in report.hosts]
    for line in table(rows):
        yield f"  {line}"


def short_lines(groups: Sequence[Sequence[WheelReport]]) -> Iterator[str]:
    """Yield a line for each host and each project's group of wheels: the wheel that fits best."""
    rows = [("HOST", "INSTALLS", "VERDICT", "WHEEL", "BECAUSE")]
    for reports in groups:
        for number in range(len(reports[0].hosts)):
            best = max(reports, key=lambda each: _fitness(each, each.hosts[number]))
            host, installs, verdict, because = _row(best.hosts[number])
            rows.append((host, installs, verdict, best.file, because))
    yield from table(rows)


def release_line(release: WorkingRelease) -> str:
    """Return a line that names the release to install instead."""
    name = f"{release.project} {release.version}"
    return f"{release.host}: {name} is the newest release found that installs and loads there"


def _fitness(
    wheel: WheelReport, report: HostReport
) -> tuple[bool, bool, int, bool, bool, int, Version, bool]:
    """Return a greater value for a wheel that suits a host better.

    First come wheels that install and load, then those that lack less there, newer versions, and
    builds without instructions that the CPU lacks.
    """
    verdicts = list(Verdict)[::-1]
    machines = {each.machine for each in report.files if each.machine}
    limits = {
        each.feature or each.message for each in report.findings if each.severity is Severity.LIMIT
    }
    codes = {each.code for each in report.findings}
    return (
        is_usable_on(report),
        report.is_installed,
        verdicts.index(report.verdict),
        not machines or report.machine in machines,
        "cpu-level" not in codes,  # it crashes, where other limits only lack something
        -len(limits),
        _version(wheel),
        "cpu-used" not in codes,
    )


def _version(wheel: WheelReport) -> Version:
    """Return the version to compare; the lowest if there is none that installers know."""
    try:
        return Version("0.dev0" if wheel.distribution is None else wheel.distribution.version)
    except InvalidVersion:
        return Version("0.dev0")


def _promise_line(report: WheelReport, minimum: Minimum) -> str:
    versions = ", ".join(dict.fromkeys(version for version, _ in minimum.because))
    because = f" ({versions})" if versions else ""
    needs = f"needs {minimum.platform}{because}"
    if report.distribution is None:
        return needs
    platforms = dict.fromkeys(tag.rpartition("-")[2] for tag in report.distribution.tags)
    return f"tagged {', '.join(platforms)}; {needs}: {report.promise.value}"


def _row(report: HostReport) -> tuple[str, str, str, str]:
    reasons = [each for each in report.findings if each.severity is not Severity.NOTE]
    reason = reasons[0] if reasons else report.refusal
    because = "" if reason is None else f"{reason.file}: {reason.message}".removeprefix(": ")
    return report.host, "yes" if report.is_installed else "no", _verdict(report), because


def _verdict(report: HostReport) -> str:
    """Return the verdict as text; ``loads without`` is followed by the missing features."""
    features = dict.fromkeys(
        each.feature for each in report.findings if each.severity is Severity.LIMIT if each.feature
    )
    lacking = (
        f" {format_few(list(features), _SHOWN_FILES)}"
        if report.verdict is Verdict.LOADS_WITHOUT
        else ""
    )
    return f"{report.verdict.value}{lacking}"


def _host_lines(report: HostReport) -> Iterator[str]:
    installs = "installs" if report.is_installed else "does not install"
    yield f"  on {report.host}: {installs}, {_verdict(report)}"
    if report.refusal is not None:
        yield f"    {report.refusal.message}"
        yield f"      fix: {report.refusal.fix}"
    grouped: dict[Finding, list[str]] = {}
    for finding in report.findings:
        alike = replace(finding, file="", library="", symbol="", feature="")
        grouped.setdefault(alike, []).append(finding.file)
    for alike, files in grouped.items():
        yield f"    {alike.severity.value}: {_files(files)}{alike.message}"
        if alike.fix:
            yield f"      fix: {alike.fix}"


def _files(files: Sequence[str]) -> str:
    named = [each for each in files if each]
    return f"{format_few(named, _SHOWN_FILES)}: " if named else ""


def is_usable(reports: Sequence[WheelReport]) -> bool:
    """Return whether each host takes one of these files, all of one project, and loads it."""
    return all(
        any(map(is_usable_on, on_host))
        for on_host in zip(*(report.hosts for report in reports), strict=True)
    )


def is_usable_on(report: HostReport) -> bool:
    """Return whether the host takes a wheel and loads it."""
    return report.is_installed and report.verdict is not Verdict.WILL_NOT_LOAD
