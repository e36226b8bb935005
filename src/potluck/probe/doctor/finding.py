"""The result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Severity(enum.Enum):
    """How severe a finding is."""

    PREVENTS = "prevents"
    """A unit that could work does not, or this node cannot take part in a cluster."""
    SLOWS = "slows"
    NOTE = "note"
    """Information; it may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One possible improvement.

    ``message`` is one line. ``command`` is the command to run, as root if it begins with sudo;
    ``details`` is one more line about it, or empty. ``device_id`` is the device concerned, if any.
    """

    check: str
    severity: Severity
    message: str
    command: str
    details: str = ""
    device_id: str = ""
