"""What this node tells others about itself."""

from __future__ import annotations

import platform
import socket
from dataclasses import dataclass
from pathlib import Path

from potluck.cluster.calls import CPU_UNIT, NodeReport, UnitReport
from potluck.probe.cores import default_num_threads
from potluck.probe.memory import available_memory
from potluck.types.cluster import NodeId
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
    memory = available_memory()
    limit = facts.memory_limit_bytes
    usable = memory.bytes - untaken_bytes
    if limit is not None:
        usable = min(usable, limit - planned_bytes)
    unit = UnitReport(
        unit_id=CPU_UNIT,
        description=f"CPU ({platform.machine()})",
        usable_bytes=max(0, usable),
        num_threads=facts.num_threads or default_num_threads(),
    )
    return NodeReport(
        node_id=facts.node_id,
        name=socket.gethostname(),
        host_id=_host_id(),
        version=__version__,
        address=facts.address,
        http_address=http_address,
        host_available_bytes=memory.bytes,
        available_reason=memory.reason,
        memory_limit_bytes=limit,
        untaken_bytes=untaken_bytes,
        is_draining=is_draining,
        units=(unit,),
    )


def _host_id() -> str:
    """The same for all agents that run on one booted kernel, in containers too."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()
