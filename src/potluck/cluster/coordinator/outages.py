"""Whether a deployment's epoch ended because of a failed unit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from potluck.cluster.membership import Membership
from potluck.cluster.methods import REPORT
from potluck.types.cluster import NodeId, UnitId
from potluck.types.deployment import StageRecord
from potluck.types.unit import Role

_REPORT_SECONDS = 2.0
"""A node that is slower reports it when the next epoch is planned."""


async def units_out(membership: Membership, stages: Sequence[StageRecord]) -> tuple[str, ...]:
    """Return why units of these stages are out by now, one line each, in the order of the stages.

    Call it after the stages were stopped: their nodes have then seen how all of their workers
    ended.
    """
    reports = await REPORT.call_all(
        membership,
        dict.fromkeys(stage.node_id for stage in stages),
        timeout_seconds=_REPORT_SECONDS,
    )
    out = {
        node: {unit.unit_id: unit.reason for unit in report.units if unit.role is Role.OUT}
        for node, report in reports.items()
    }
    return outage_lines(out, stages)


def outage_lines(
    out: Mapping[NodeId, Mapping[UnitId, str]], stages: Iterable[StageRecord]
) -> tuple[str, ...]:
    """Return a line for each unit of ``stages`` that is ``out``, with its node's reason."""
    units = dict.fromkeys((stage.node_id, stage.unit_id) for stage in stages)
    return tuple(
        f"{unit_id} on node {node_id} is out: {out[node_id][unit_id]}"
        for node_id, unit_id in units
        if unit_id in out.get(node_id, {})
    )
