"""The report of this node for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from potluck.cluster.agent.threads import NodeThreads
from potluck.cluster.agent.units import NodeUnit
from potluck.host.memory import memory_facts, memory_pools
from potluck.host.system import THIS_MACHINE
from potluck.host.uname import host_name
from potluck.probe.chips.derive import merge_figures
from potluck.types.cluster import DeploymentId, NodeId, UnitId
from potluck.types.hardware import ProbeReport
from potluck.types.held_stage import HeldStage
from potluck.types.node import NodeReport, UnitReport
from potluck.types.speed import LinkSpeed
from potluck.version import __version__

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """The memory that plans have assigned to the stages here, in bytes.

    ``planned_bytes`` are of the machine's memory; ``untaken_bytes`` of them are not yet in use, and
    so appear free. ``device_bytes`` are by unit, for units with their own memory. ``held`` are the
    loaded stages.
    """

    planned_bytes: int = 0
    untaken_bytes: int = 0
    device_bytes: Mapping[UnitId, int] = field(default_factory=dict)
    held: tuple[HeldStage, ...] = ()


def report(
    node_id: NodeId,
    hardware: ProbeReport,
    units: Sequence[NodeUnit],
    threads: NodeThreads,
    *,
    memory_limit_bytes: int | None,
    address: str,
    http_address: str | None,
    is_draining: bool,
    stages: StageMemory,
    refused: Mapping[DeploymentId, str],
    links: tuple[LinkSpeed, ...] = (),
) -> NodeReport:
    """Return the node's current report."""
    memory = memory_facts(THIS_MACHINE)
    usable = memory.usable.bytes - stages.untaken_bytes
    if memory_limit_bytes is not None:
        usable = min(usable, memory_limit_bytes - stages.planned_bytes)
    usable = max(0, usable)
    host_id = _host_id()
    return NodeReport(
        node_id=node_id,
        name=host_name(),
        host_id=host_id,
        version=__version__,
        address=address,
        http_address=http_address,
        available_bytes=memory.usable.bytes,
        available_reason=memory.usable.reason,
        memory_limit_bytes=memory_limit_bytes,
        usable_bytes=usable,
        pools=memory_pools(host_id),
        untaken_bytes=stages.untaken_bytes,
        is_draining=is_draining,
        refused=dict(refused),
        held=stages.held,
        units=tuple(_unit(unit, usable, stages.device_bytes, threads) for unit in units),
        hardware=replace(hardware, memory=memory),
        links=links,
    )


def _unit(
    unit: NodeUnit, host_bytes: int, planned: Mapping[UnitId, int], threads: NodeThreads
) -> UnitReport:
    """Return a unit with its usable memory: the host's, or its own as the probe found it."""
    unit_id = UnitId(unit.chosen.unit_id)
    own_bytes = unit.device.own_free_bytes
    share = threads.usable_share if unit.is_on_cpu else 1.0
    return UnitReport(
        unit_id=unit_id,
        backend=unit.chosen.backend,
        description=unit.device.name,
        usable_bytes=(
            host_bytes if own_bytes is None else max(0, own_bytes - planned.get(unit_id, 0))
        ),
        is_shared=own_bytes is None,
        num_threads=threads.num_computing,
        max_threads=threads.most,
        role=unit.chosen.role,
        reason=unit.chosen.reason,
        rates=unit.trial.rates,
        arithmetics=unit.arithmetics,
        figures=merge_figures(unit.trial.figures, unit.device.figures),
        usable_share=share,
        quota_period_seconds=threads.cores.period_seconds if share < 1 else None,
    )


def _host_id() -> str:
    """Return an id shared by all agents on one booted kernel, including those in containers."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return host_name()
