"""The JSON document of ``potluck wheel check``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import potluck
from potluck.cli.cluster_hosts import SilentNode
from potluck.portability.checks.report import HostReport, WheelReport
from potluck.portability.finding import Finding, Severity, Verdict
from potluck.portability.hosts.host import Host
from potluck.portability.linking.promises import Minimum, Promise
from potluck.types.documents.base import Document, document_of


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
    releases: Iterable[WorkingRelease] = (),
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
