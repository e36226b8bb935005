"""What comes of a child process that touches a driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Failure(enum.Enum):
    """How a child failed."""

    REFUSED = "refused"
    """It said itself, in an orderly way, that it cannot: a missing library, a driver's error."""
    CRASHED = "crashed"
    HUNG = "hung"
    TOO_BIG = "too big"
    RUBBISH = "rubbish"
    NOT_STARTED = "not started"
    QUARANTINED = "quarantined"
    """It was not started: an earlier one crashed, hung or grew on the same device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildAnswer:
    """The JSON document that a child printed."""

    document: dict[str, object]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildFailure:
    """Why there is no document, in one line."""

    failure: Failure
    reason: str
    seconds: float


ChildOutcome = ChildAnswer | ChildFailure
