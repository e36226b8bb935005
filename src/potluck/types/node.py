"""The report of a node's agent: its units, its memory, and its stages."""

from __future__ import annotations

from typing import Annotated

import msgspec

from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import DeploymentId, NodeId, UnitId
from potluck.types.hardware import Figures, ProbeReport, Rates
from potluck.types.held_stage import HeldStage, ReportedBytes
from potluck.types.memory import MemoryPool
from potluck.types.ranges import MAX_THREADS
from potluck.types.speed import LinkSpeed
from potluck.types.unit import Role

CPU_UNIT = UnitId("cpu/native")
"""The unit that every node has."""

_MAX_UNITS = 1024
_MAX_HELD_STAGES = 1024
MAX_LINKS = 1024
"""The most links in a report."""


class UnitReport(msgspec.Struct, frozen=True, kw_only=True):
    """A unit and its usable resources. ``usable_bytes`` is the memory free for new stages.

    If ``is_shared``, its memory is the host's. ``reason`` says why it has its role, or why no stage
    can run on it. ``rates`` are the measured rates of a small program on it. ``arithmetics`` are
    the arithmetics that it supports; empty for a backend that has its own. ``figures`` are those of
    its device through this backend.

    Stages on it have ``max_threads`` threads, and ``num_threads`` of them compute now: the number
    of usable cores can change. If a control group limits their core time, ``usable_share`` is the
    part of the core time of the threads that ``rates`` were measured with, and the quota is renewed
    every ``quota_period_seconds``.
    """

    unit_id: UnitId
    backend: str
    description: str
    usable_bytes: ReportedBytes
    is_shared: bool
    num_threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)]
    max_threads: Annotated[int, msgspec.Meta(ge=1, le=MAX_THREADS)]
    role: Role = Role.SERVES
    reason: str = ""
    rates: Rates = Rates()
    arithmetics: tuple[Arithmetic, ...] = ()
    figures: Figures = Figures()
    usable_share: float = 1.0
    quota_period_seconds: float | None = None


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a node.

    ``host_id`` is the same for all agents on one machine. ``available_bytes`` is the memory
    available now, and ``available_reason`` the reason for the limit; ``usable_bytes`` of it are for
    new stages. ``pools`` is the memory that the node shares with others; ``untaken_bytes`` of all
    pools are reserved for stages of this agent that have not allocated them yet.
    ``memory_limit_bytes`` is the user's limit for this agent. ``refused`` are the deployments for
    which it must not serve clients, with reasons. ``held`` are the stages that its workers have
    loaded. ``hardware`` is the probe's report so far. ``links`` are the measured links to other
    nodes.
    """

    node_id: NodeId
    name: str
    host_id: str
    version: str
    address: str
    http_address: str | None
    available_bytes: ReportedBytes
    available_reason: str
    memory_limit_bytes: int | None
    usable_bytes: ReportedBytes
    pools: tuple[MemoryPool, ...]
    untaken_bytes: ReportedBytes
    is_draining: bool
    units: Annotated[tuple[UnitReport, ...], msgspec.Meta(max_length=_MAX_UNITS)]
    refused: dict[DeploymentId, str] = msgspec.field(default_factory=dict)
    held: Annotated[tuple[HeldStage, ...], msgspec.Meta(max_length=_MAX_HELD_STAGES)] = ()
    hardware: ProbeReport
    links: Annotated[tuple[LinkSpeed, ...], msgspec.Meta(max_length=MAX_LINKS)] = ()

    @property
    def pool_ids(self) -> frozenset[str]:
        """The ids of its pools."""
        return frozenset(pool.pool_id for pool in self.pools)
