"""A node as its agent reports it: its units, its memory, and the stages that it holds."""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.hardware import Figures, ProbeReport, Rates
from potluck.types.memory import MemoryPool
from potluck.types.quantization import Quantization
from potluck.types.ranges import MAX_THREADS
from potluck.types.unit import Role

CPU_UNIT = UnitId("cpu/native")
"""The unit that every node has."""

MAX_BYTES = 2**60
"""More memory than any machine has. Sums of such numbers are far from overflowing an int64."""

_MAX_UNITS = 1024
_MAX_HELD_STAGES = 1024

_Bytes = Annotated[int, msgspec.Meta(ge=-MAX_BYTES, le=MAX_BYTES)]
"""Below zero where more is promised than there is."""


class UnitReport(msgspec.Struct, frozen=True, kw_only=True):
    """A unit and what it may use. ``usable_bytes`` is what is free for stages that are not yet.

    ``is_shared``: its memory is the host's. ``reason`` says why it has its role: of one that is
    out, why no stage can run on it. ``rates`` are what a small program reached on it.
    ``arithmetics`` are those that it computes in as it is asked; none for a backend that has one
    of its own. ``figures`` are those of its device through this backend. ``usable_cores`` is how
    many cores' time its threads get at most together, where a control group limits that, which
    renews what it allows once in every ``quota_period_seconds``.
    """

    unit_id: UnitId
    backend: str
    description: str
    usable_bytes: _Bytes
    is_shared: bool
    num_threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)]
    role: Role = Role.SERVES
    reason: str = ""
    rates: Rates = Rates()
    arithmetics: tuple[Arithmetic, ...] = ()
    figures: Figures = Figures()
    usable_cores: float | None = None
    quota_period_seconds: float | None = None


class HeldStage(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded stage that a worker holds: in use at ``epoch``, or left from it and not in use.

    ``num_bytes`` are what its plan has counted of the machine's memory, ``device_bytes`` of memory
    that is the unit's own. The first stage has the embedding, the last one the head. A later plan
    keeps a stage where the rest is the same as in its own.
    """

    deployment: DeploymentId
    epoch: Epoch
    unit_id: UnitId
    start_layer: int
    end_layer: int
    has_embedding: bool
    has_head: bool
    context_tokens: int
    num_blocks: int
    quantization: Quantization
    arithmetic: Arithmetic
    is_mapped: bool
    num_bytes: _Bytes
    device_bytes: _Bytes
    num_states: int = 0

    def is_same_holding(self, other: HeldStage) -> bool:
        """Return whether both are the same stage, whatever its epoch and what plans counted."""
        return self == msgspec.structs.replace(
            other, epoch=self.epoch, num_bytes=self.num_bytes, device_bytes=self.device_bytes
        )


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it is now.

    ``host_id`` is the same for agents on one machine. ``available_bytes`` may be taken here now,
    ``available_reason`` says what sets the limit; ``usable_bytes`` of it are for stages that are
    not yet. ``pools`` are the memory that it draws on with
    others; ``untaken_bytes`` of all of them are promised to stages of this agent that have not
    taken them yet. ``memory_limit_bytes`` is what the user allows this agent. ``refused`` are
    deployments that it must not answer clients for, and why. ``held`` are the stages that its
    workers have loaded. ``hardware`` is what the probe has found so far.
    """

    node_id: NodeId
    name: str
    host_id: str
    version: str
    address: str
    http_address: str | None
    available_bytes: _Bytes
    available_reason: str
    memory_limit_bytes: int | None
    usable_bytes: _Bytes
    pools: tuple[MemoryPool, ...]
    untaken_bytes: _Bytes
    is_draining: bool
    units: Annotated[tuple[UnitReport, ...], msgspec.Meta(max_length=_MAX_UNITS)]
    refused: dict[DeploymentId, str] = msgspec.field(default_factory=dict)
    held: Annotated[tuple[HeldStage, ...], msgspec.Meta(max_length=_MAX_HELD_STAGES)] = ()
    hardware: ProbeReport

    @property
    def pool_ids(self) -> frozenset[str]:
        """Of its pools."""
        return frozenset(pool.pool_id for pool in self.pools)
