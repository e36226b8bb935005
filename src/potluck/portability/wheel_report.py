"""What a check says of a wheel: values, for one host or for many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from potluck.portability.finding import Finding, Severity, Verdict, verdict_of
from potluck.portability.promises import Minimum, Promise
from potluck.portability.wheel_file import Distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    """Of one ELF file on one host. ``opens_alone``: the dynamic linker opens it in a process that
    has opened nothing else; None of files for another machine. ``findings`` are its own, and those
    of what it brings along.
    """

    path: str
    machine: str
    opens_alone: bool | None
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """What its findings come to."""
        return verdict_of(self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReport:
    """Of a wheel on one host. ``refusal`` is why installers would not take it; ``features`` is what
    is found out about the wheel as a whole.
    """

    host: str
    origin: str
    machine: str
    refusal: Finding | None
    files: tuple[FileReport, ...]
    features: tuple[Finding, ...]

    @property
    def is_installed(self) -> bool:
        """Whether installers take it."""
        return self.refusal is None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All about what is in it, each once: what is fatal first."""
        found = dict.fromkeys((*self._of_files(), *self.features))
        return tuple(sorted(found, key=lambda each: list(Severity).index(each.severity)))

    @property
    def verdict(self) -> Verdict:
        """Of its contents, installed or not."""
        return verdict_of(self.findings)

    def _of_files(self) -> Iterator[Finding]:
        for each in self.files:
            yield from each.findings


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelReport:
    """Of a wheel on some hosts. ``minima`` are the oldest policies that its files keep, for each
    machine that it has files for; ``promise`` compares with what its tags say.
    """

    file: str
    distribution: Distribution | None
    minima: tuple[Minimum, ...]
    promise: Promise
    hosts: tuple[HostReport, ...]
