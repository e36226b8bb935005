"""Decide whether a wheel of an index installs and loads on a target, like ``potluck wheel
check``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import WheelDownloadError, WheelFileError
from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import WheelNeeds
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import HostReport
from potluck.portability.finding import Finding, Severity
from potluck.portability.memory import Memory
from potluck.portability.planning.index import IndexFile, ParsedName, parse_filename
from potluck.portability.planning.target import Target
from potluck.portability.planning.wheel_reader import WheelReader

_MAX_PREPARED = 4
"""Number of wheels whose tables stay in memory for the next target: 50 MB for the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFeature:
    """A feature of a package that will not work on a host, and what to do about it."""

    feature: str
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incompatibility:
    """Why a wheel does not work on a host. Reasons of one ``kind`` are similar for many releases.

    ``library`` is the one that the host lacks, if that is the only reason.
    """

    kind: str
    message: str
    library: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The verdict for a wheel on a target. ``reasons`` say why it does not load; empty if
    it does.
    """

    reasons: tuple[Incompatibility, ...] = ()
    lost: tuple[LostFeature, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether it loads."""
        return not self.reasons


class Judge:
    """Judges wheels on targets, each once. Not thread-safe."""

    def __init__(self, reader: WheelReader, targets: Iterable[Target]) -> None:
        self.reader = reader
        self.targets = {each.name: each for each in targets}
        self.num_read = 0
        self._checks = {each.name: HostCheck(each.host) for each in self.targets.values()}
        self._judged: dict[tuple[str, str], Judgement] = {}
        self._prepared: Memory[PreparedWheel] = Memory(_MAX_PREPARED)

    def fitting(self, files: Iterable[IndexFile], target: str) -> IndexFile | None:
        """Return the wheel that installers choose on a target; None if they accept none of
        these.
        """
        found: list[tuple[int, tuple[int, str] | tuple[()], IndexFile]] = []
        for file in files:
            parsed = _parsed(file)
            rank = self.targets[target].rank(parsed)
            if rank is not None and not self.targets[target].refusal(file):
                found.append((rank, parsed.build, file))
        if not found:
            return None
        best = min(rank for rank, _, _ in found)
        return max(
            ((build, file) for rank, build, file in found if rank == best),
            key=lambda each: each[0],
        )[1]

    def judge(self, file: IndexFile, target: str) -> Judgement:
        """Return whether a wheel loads on a target. It is read the first time; a wheel that cannot
        be read is not usable. Raise ``WheelDownloadError`` if the index does not provide it.
        """
        key = file.url, target
        if key not in self._judged:
            self._judged[key] = self._judge(file, target)
            if not self._judged[key].is_usable:
                self.reader.discard(file)
        return self._judged[key]

    def is_judged(self, file: IndexFile, target: str) -> bool:
        """Return whether it has already been read and judged."""
        return (file.url, target) in self._judged

    def _judge(self, file: IndexFile, target: str) -> Judgement:
        try:
            wheel = self._prepared.get(file.url, lambda: self._prepare(file))
        except WheelFileError as error:
            return Judgement(reasons=(Incompatibility(kind="broken", message=error.message),))
        return _judgement(self._checks[target].check(wheel), wheel.needs)

    def _prepare(self, file: IndexFile) -> PreparedWheel:
        self.num_read += 1
        return PreparedWheel(self.reader.needs(file))


def _judgement(report: HostReport, needs: WheelNeeds) -> Judgement:
    refusal = report.refusal
    if refusal is not None:
        message = refusal.message.removeprefix("installers refuse it: ")
        return Judgement(reasons=(Incompatibility(kind=refusal.code, message=message),))
    reasons: dict[Incompatibility, None] = {}
    lost: dict[str, LostFeature] = {}
    for finding in report.findings:
        if finding.severity is Severity.LIMIT:
            lost.setdefault(finding.feature or finding.message, _lost_feature(finding))
        elif finding.severity is Severity.FATAL:
            if needs.imported is None and _is_optional(finding, report):
                lost.setdefault(finding.file, _lost_feature(finding))
            else:
                reasons[_incompatibility(finding)] = None
    return Judgement(reasons=tuple(reasons), lost=tuple(lost.values()))


def _is_optional(finding: Finding, report: HostReport) -> bool:
    """Return whether a file is one of several alternatives: it requires a library that the host
    lacks (a driver, MPI), but another file of the wheel does not. This applies only if it is
    unknown what is imported, since wheels that contain only libraries have no Python code.
    """
    return finding.code == "missing-library" and any(each.opens_alone for each in report.files)


def _lost_feature(finding: Finding) -> LostFeature:
    message = f"{finding.file}: {finding.message}" if finding.file else finding.message
    is_use = finding.severity is Severity.FATAL
    return LostFeature(
        feature=finding.feature or (f"what uses {finding.file}" if is_use else ""),
        message=finding.message if finding.feature else message,
        fix=finding.fix,
    )


def _incompatibility(finding: Finding) -> Incompatibility:
    named = f"{finding.file}: {finding.message}" if finding.file else finding.message
    library = finding.library if finding.code == "missing-library" else ""
    return Incompatibility(kind=finding.code, message=named, library=library)


def _parsed(file: IndexFile) -> ParsedName:
    parsed = parse_filename(file.filename)
    if parsed is None:
        raise WheelDownloadError(f"{file.filename} is neither a wheel nor a source package")
    return parsed
