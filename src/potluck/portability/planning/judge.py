"""Decide whether a wheel of an index installs and loads on a target, like ``potluck wheel
check``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.errors import WheelFileError
from potluck.portability.checks.host_check import HostCheck
from potluck.portability.checks.needs import WheelNeeds
from potluck.portability.checks.prepared_wheel import PreparedWheel
from potluck.portability.checks.report import HostReport
from potluck.portability.checks.variant_properties import host_namespaces
from potluck.portability.finding import Finding, Severity
from potluck.portability.memory import Memory
from potluck.portability.planning.index import Incompatibility, IndexFile, Release
from potluck.portability.planning.release_variants import (
    HostVariants,
    VariantFacts,
    VariantReader,
)
from potluck.portability.planning.target import Target
from potluck.portability.planning.wheel_reader import WheelReader

_MAX_PREPARED = 4
"""Number of wheels whose tables stay in memory for the next target: 50 MB for the largest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFeature:
    """A feature of a package that will not work on a host, and what to do about it."""

    feature: str | None
    message: str
    fix: str | None = None


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
    """Judges wheels on targets, each once. Not thread-safe.

    ``with_variants``: installers also choose among variants of wheels (PEP 825). Variants that the
    user named are judged in any case.
    """

    def __init__(
        self, reader: WheelReader, targets: Iterable[Target], *, with_variants: bool = False
    ) -> None:
        self.reader = reader
        self.targets = {each.name: each for each in targets}
        self.with_variants = with_variants
        self.num_read = 0
        self._variants = VariantReader(reader)
        self._namespaces = {each.name: host_namespaces(each.host) for each in self.targets.values()}
        self._checks = {each.name: HostCheck(each.host) for each in self.targets.values()}
        self._judged: dict[tuple[str, str], Judgement] = {}
        self._prepared: Memory[PreparedWheel] = Memory(_MAX_PREPARED)

    def on_targets(self, targets: Iterable[Target]) -> Judge:
        """Return a judge for other targets that reads the same wheels."""
        return Judge(self.reader, targets, with_variants=self.with_variants)

    def fits_by_tags(self, release: Release, target: str) -> bool:
        """Return whether the tags of a wheel of the release, or of a variant that is considered,
        fit a target.
        """
        on = self.targets[target]
        return any(map(on.accepts, (*release.wheels, *self._considered(release))))

    def fitting(self, release: Release, target: str) -> IndexFile | None:
        """Return the wheel of a release that installers choose on a target; None if they accept
        none.

        Variants come before other wheels. A variant that the user named comes last if the host may
        not have its properties.
        """
        on = self.targets[target]
        variants = self.variants(release, target)
        for label in variants.labels:
            if found := on.preferred(_labelled(self._considered(release), label)):
                return found
        if found := on.preferred(release.wheels):
            return found
        named = [each for each in self._considered(release) if each.is_named]
        for label in variants.not_judged:
            if found := on.preferred(_labelled(named, label)):
                return found
        return None

    def variants(self, release: Release, target: str) -> HostVariants:
        """Return the variants of a release on a target, of those that are considered. Their
        properties are read the first time.
        """
        wheels = tuple(filter(self.targets[target].accepts, self._considered(release)))
        if not wheels:
            return HostVariants()
        return self._variants.on_host(release, wheels, self._namespaces[target])

    def variant_facts(self, file: IndexFile, target: str) -> VariantFacts:
        """Return what markers can test of a wheel that ``fitting`` returned for a target."""
        return self._variants.facts(file, self._namespaces[target])

    def _considered(self, release: Release) -> tuple[IndexFile, ...]:
        return tuple(each for each in release.variants if self.with_variants or each.is_named)

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
        feature=finding.feature or (f"what uses {finding.file}" if is_use else None),
        message=finding.message if finding.feature else message,
        fix=finding.fix or None,
    )


def _incompatibility(finding: Finding) -> Incompatibility:
    named = f"{finding.file}: {finding.message}" if finding.file else finding.message
    library = finding.library if finding.code == "missing-library" else ""
    return Incompatibility(kind=finding.code, message=named, library=library)


def _labelled(wheels: Iterable[IndexFile], label: str) -> list[IndexFile]:
    return [each for each in wheels if each.label == label]
