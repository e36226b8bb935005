"""The result of a check."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.documents.base import NonEmpty


class Severity(enum.Enum):
    """How severe a finding is."""

    PREVENTS = "prevents"
    """A unit that could work does not, or this node cannot take part in a cluster."""
    SLOWS = "slows"
    NOTE = "note"
    """Information; it may be intended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One possible improvement."""

    check: NonEmpty
    """The name of the check in ``docs/guides/doctor.md``."""
    severity: Severity
    """``prevents``: a unit that could work does not, or this node cannot take part in a cluster
    (exit code 1)."""
    message: NonEmpty
    """One line."""
    command: NonEmpty
    """The command to run, as root if it begins with sudo."""
    details: str = ""
    """One more line about the command; may be empty."""
    device_id: NonEmpty | None = None
    """The device concerned, if any."""
