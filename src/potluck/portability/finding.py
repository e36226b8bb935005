"""Findings about one file on one host, and the verdict that follows."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """What a finding means for programs that load the file."""

    FATAL = "fatal"
    """It will not load."""
    LIMIT = "limit"
    """It loads, but something in it will not work."""
    LIKELY = "likely"
    """It loads, but something that it opens later may not be found."""
    NOTE = "note"
    """It has no effect."""


class Verdict(enum.StrEnum):
    """The worst finding in one word."""

    LOADS = "loads"
    LOADS_WITHOUT = "loads without"
    WILL_NOT_LOAD = "will not load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason. ``code`` names its kind (``missing-version``), ``file`` is the file that it is
    about, ``symbol`` the missing symbol, if that is the reason; ``feature`` is what does not work
    because of it; ``fix`` says what to do, or is empty.
    """

    code: str
    severity: Severity
    message: str
    file: str = ""
    library: str = ""
    symbol: str = ""
    feature: str = ""
    fix: str = ""


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """Return the verdict that follows from findings."""
    if any(each.severity is Severity.FATAL for each in findings):
        return Verdict.WILL_NOT_LOAD
    if any(each.severity is Severity.LIMIT for each in findings):
        return Verdict.LOADS_WITHOUT
    return Verdict.LOADS
