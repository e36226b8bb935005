"""Units: devices with their backends, how workers address them, and how they fail."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated

import msgspec

from potluck.types.document import NonEmpty

NATIVE = "native"
"""The backend that every build has, and the only one that can map weights."""


PAUSES_SECONDS = (60.0, 300.0, 1800.0)
"""How long a unit that failed is not used, by how often it has failed. A driver that is reset, a
GPU that another program fills, or a full disk is usable within a minute, if at all; half an hour is
often enough to notice that the rest was repaired."""


def pause_seconds(num_failures: int) -> float:
    """Return how long a unit is not used after it failed for the ``num_failures``-th time."""
    return PAUSES_SECONDS[min(num_failures, len(PAUSES_SECONDS)) - 1]


def backend_of(unit: str) -> str:
    """Return the backend in a user's choice of a backend or a unit (``cpu/native``)."""
    return unit.rpartition("/")[2]


class Role(enum.Enum):
    """How the node uses a unit."""

    SERVES = "serves"
    RESERVE = "reserve"
    """It works, but a faster unit of the node is used first."""
    IDLE = "idle"
    """It works, but is not used: another backend of its device is faster or was requested."""
    PENDING = "pending"
    """It has not been tested yet."""
    OUT = "out"
    """It does not work, or no longer works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenUnit:
    """A unit and its role."""

    unit_id: NonEmpty
    device_id: NonEmpty
    backend: NonEmpty
    role: Role
    reason: str = ""
    """Why it has this role, in one line; empty if it serves without alternatives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """An interface through which software uses a device."""

    api: Annotated[str, msgspec.Meta(extra_json_schema={"enum": ["opencl", "cuda", "kfd", "kgsl"]})]
    """``kfd`` is AMD's compute driver, ``kgsl`` Qualcomm's."""
    address: str
    """For OpenCL ``/etc/OpenCL/vendors/pocl.icd#0:0``: the file that names the library, and the
    indexes of the platform and the device, both from 0, when only this library is loaded (the GPUs
    of a platform come first). For CUDA the device's UUID or PCI address, or empty if there is only
    one device. For KFD the index of the node among those that compute."""
    description: str = ""
    """The driver's description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAddress:
    """Everything that a process needs to compute on a unit. Never received from another node.

    ``engine`` is the backend's module (``BackendSpec.engine``), as determined by this node.
    ``variant`` is one of the variants that passed; empty means the fastest.
    """

    unit_id: str
    backend: str
    engine: str
    interface: Interface | None = None
    variant: str = ""


class Fault(enum.Enum):
    """How a unit failed in use."""

    OUT_OF_MEMORY = "out of memory"
    DRIVER = "driver error"
    HUNG = "hung"
    NOT_FINITE = "not finite"
    WRONG = "wrong numbers"
    KILLED = "killed"
