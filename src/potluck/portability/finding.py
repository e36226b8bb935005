"""What is found out about one file on one host, and the verdict that follows."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.StrEnum):
    """What a finding means for who loads the file."""

    FATAL = "fatal"
    """It will not load."""
    LIMIT = "limit"
    """It loads, and something in it will not work."""
    LIKELY = "likely"
    """It loads, and something that it opens later may not be found."""
    NOTE = "note"
    """It changes nothing."""


class Verdict(enum.StrEnum):
    """The worst finding in a word."""

    LOADS = "loads"
    LOADS_WITHOUT = "loads without"
    WILL_NOT_LOAD = "will not load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason. ``code`` names its kind (``missing-version``), ``file`` is where it was read,
    ``symbol`` what is missing where it is one; ``feature`` what does not work without it;
    ``way_out`` is what to do, or nothing.
    """

    code: str
    severity: Severity
    message: str
    file: str = ""
    library: str = ""
    symbol: str = ""
    feature: str = ""
    way_out: str = ""


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """What the findings come to."""
    if any(each.severity is Severity.FATAL for each in findings):
        return Verdict.WILL_NOT_LOAD
    if any(each.severity is Severity.LIMIT for each in findings):
        return Verdict.LOADS_WITHOUT
    return Verdict.LOADS
