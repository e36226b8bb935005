"""The result of checking a wheel, for one host or for many."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.portability.finding import Finding, Severity, Verdict, verdict_of
from potluck.portability.linking.promises import Minimum, Promise
from potluck.portability.wheels.file import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """The result for one ELF file on one host. ``opens_alone``: the dynamic linker can open it in a
    process that has opened nothing else; None for files for another machine. ``findings`` include
    those of the files that it loads.
    """

    path: str
    machine: str
    opens_alone: bool | None
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows from its findings."""
        return verdict_of(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """The result for a wheel on one host. ``refusal`` is why installers would refuse it;
    ``features`` are the findings about the wheel as a whole.
    """

    host: str
    origin: str
    machine: str
    refusal: Finding | None
    files: tuple[FileReport, ...]
    features: tuple[Finding, ...]

    @property
    def is_installed(self) -> bool:
        """Whether installers accept it."""
        return self.refusal is None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings about its contents without duplicates, fatal ones first."""
        of_files = (finding for each in self.files for finding in each.findings)
        found = dict.fromkeys((*of_files, *self.features))
        return tuple(sorted(found, key=lambda each: list(Severity).index(each.severity)))

    @property
    def verdict(self) -> Verdict:
        """The verdict on its contents, whether or not it can be installed."""
        return verdict_of(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelReport:
    """The result for a wheel on several hosts. ``minima`` are the oldest policies that its files
    conform to, for each machine that it has files for; ``promise`` compares them with its tags.
    """

    file: str
    distribution: Distribution | None
    minima: tuple[Minimum, ...]
    promise: Promise
    hosts: tuple[HostReport, ...]
