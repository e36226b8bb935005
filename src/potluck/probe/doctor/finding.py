"""What a check says."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """How much a finding costs."""

    PREVENTS = "prevents"
    """A unit that could work does not, or this node cannot take its place in a cluster."""
    SLOWS = "slows"
    NOTE = "note"
    """Worth knowing; it may be meant so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that could be better.

    ``message`` is one line. ``command`` is what to type, with root's rights where it says sudo;
    ``details`` say what else is to be known about it, in one line, or nothing. ``device_id`` is the
    device it is about, if any.
    """

    check: str
    severity: Severity
    message: str
    command: str
    details: str = ""
    device_id: str = ""
