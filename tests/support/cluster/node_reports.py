"""What a node reports of itself, where only a few fields matter."""

from __future__ import annotations

from typing import Any

import msgspec
from support.machines import hardware

from potluck.types.cluster import NodeId
from potluck.types.memory import MemoryPool
from potluck.types.node import NodeReport, UnitReport


def node_report(
    node_id: str, /, *units: UnitReport, usable_bytes: int = 0, **changes: Any
) -> NodeReport:
    """Return the report of a node on a machine of its own, which draws on no pool.

    ``changes`` are fields that are to be otherwise.
    """
    report = NodeReport(
        node_id=NodeId(node_id),
        name="",
        host_id=node_id,
        version="",
        address="",
        http_address=None,
        available_bytes=usable_bytes,
        available_reason="",
        memory_limit_bytes=None,
        usable_bytes=usable_bytes,
        pools=(),
        untaken_bytes=0,
        is_draining=False,
        units=units,
        hardware=hardware.report(),
    )
    return msgspec.structs.replace(report, **changes)


def own_pool(name: str, num_bytes: int) -> MemoryPool:
    """Return the memory of a machine with this id, all of it free."""
    return MemoryPool(pool_id=name, limit_bytes=num_bytes, available_bytes=num_bytes)
