"""Whether a deployment's epoch ended because of a failed unit."""

from __future__ import annotations

from collections.abc import Iterable

from potluck.cluster.membership import Membership
from potluck.cluster.methods import REPORT
from potluck.types.cluster import NodeId, UnitId
from potluck.types.deployment import StageRecord
from potluck.types.unit import Role

_REPORT_SECONDS = 2.0
"""A node that is slower reports it when the next epoch is planned."""


async def units_out(membership: Membership, stages: Iterable[StageRecord]) -> tuple[str, ...]:
    """Return why units of these stages are out by now, one line each, in the order of the stages.

    Call it after the stages were stopped: their nodes have then seen how all of their workers
    ended.
    """
    units: dict[NodeId, list[UnitId]] = {}
    for stage in stages:
        units.setdefault(stage.node_id, []).append(stage.unit_id)
    reports = await REPORT.call_all(
        membership, dict.fromkeys(units), timeout_seconds=_REPORT_SECONDS
    )
    return tuple(
        f"{unit.unit_id} on node {report.node_id} is out: {unit.reason}"
        for report in reports.values()
        for unit in report.units
        if unit.role is Role.OUT and unit.unit_id in units[report.node_id]
    )
