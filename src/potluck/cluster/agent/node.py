"""What this node tells others about itself."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from pathlib import Path

from potluck.cluster.calls import CPU_UNIT, NodeReport, UnitReport
from potluck.probe.cores import default_num_threads
from potluck.probe.memory import memory_facts, memory_pools
from potluck.probe.system import THIS_MACHINE
from potluck.types.cluster import NodeId, UnitId
from potluck.types.hardware import Device, ProbeReport, Trial
from potluck.version import __version__

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What does not change while the agent runs."""

    node_id: NodeId
    address: str
    memory_limit_bytes: int | None
    num_threads: int | None


def report(
    facts: NodeFacts,
    hardware: ProbeReport,
    *,
    http_address: str | None,
    is_draining: bool,
    planned_bytes: int,
    untaken_bytes: int,
) -> NodeReport:
    """The node as it is now.

    ``planned_bytes`` is what plans have counted for the stages here, ``untaken_bytes`` what of it
    is still free to the eye.
    """
    memory = memory_facts(THIS_MACHINE)
    limit = facts.memory_limit_bytes
    usable = memory.usable.bytes - untaken_bytes
    if limit is not None:
        usable = min(usable, limit - planned_bytes)
    devices = {device.device_id: device for device in hardware.devices}
    units = tuple(
        _unit(trial, devices[trial.device_id], max(0, usable), facts)
        for trial in hardware.trials
        if trial.works or trial.unit_id == CPU_UNIT
    )
    host_id = _host_id()
    return NodeReport(
        node_id=facts.node_id,
        name=socket.gethostname(),
        host_id=host_id,
        version=__version__,
        address=facts.address,
        http_address=http_address,
        available_bytes=memory.usable.bytes,
        available_reason=memory.usable.reason,
        memory_limit_bytes=limit,
        pools=memory_pools(host_id),
        untaken_bytes=untaken_bytes,
        is_draining=is_draining,
        units=units,
        hardware=replace(hardware, memory=memory),
    )


def _unit(trial: Trial, device: Device, host_bytes: int, facts: NodeFacts) -> UnitReport:
    """A unit with what it may use: of the host's memory, or of its own as the probe saw it."""
    memory = device.memory
    own_bytes = memory.free_bytes if memory.free_bytes is not None else memory.total_bytes
    return UnitReport(
        unit_id=UnitId(trial.unit_id),
        description=device.name,
        usable_bytes=host_bytes if memory.is_shared else own_bytes or 0,
        is_shared=memory.is_shared,
        num_threads=facts.num_threads or default_num_threads(),
        problem="" if trial.works else trial.reason,
    )


def _host_id() -> str:
    """The same for all agents that run on one booted kernel, in containers too."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
