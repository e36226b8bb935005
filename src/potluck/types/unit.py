"""Units: devices with the backends chosen for them, how workers reach them, how they fail."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from potluck.types.hardware import Interface

NATIVE = "native"
"""The backend that every build has, and the one whose weights can be mapped."""


def backend_of(asked: str) -> str:
    """The backend of what a user asks for: a backend, or a unit (``cpu/native``)."""
    return asked.rpartition("/")[2]


class Role(enum.Enum):
    """What a unit is there for."""

    SERVES = "serves"
    RESERVE = "reserve"
    """It works, and a faster unit of the node is used before it."""
    IDLE = "idle"
    """It works, and is not used: another backend of its device is faster, or was asked for."""
    PENDING = "pending"
    """It has not been tested yet."""
    OUT = "out"
    """It does not work, or no longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenUnit:
    """A unit, its role, and why: one line, empty for one that serves without rivals."""

    unit_id: str
    device_id: str
    backend: str
    role: Role
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAddress:
    """All that a process must know to compute on a unit. Never from another node.

    ``engine`` is the backend's module (``BackendSpec.engine``), by the word of this node alone.
    ``variant`` is the one to use of those that passed; empty is the fastest there is.
    """

    unit_id: str
    backend: str
    engine: str
    interface: Interface | None = None
    variant: str = ""


class Fault(enum.Enum):
    """How a unit failed while it was used."""

    OUT_OF_MEMORY = "out of memory"
    DRIVER = "driver error"
    HUNG = "hung"
    NOT_FINITE = "not finite"
    WRONG = "wrong numbers"
    KILLED = "killed"
