"""Spares: stages that additional nodes hold, so that nothing has to be loaded when one is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.cluster.coordinator.starting import load_stage
from potluck.cluster.coordinator.survey import gather_reports
from potluck.cluster.coordinator.weights import ModelWeights, prepare_weights
from potluck.cluster.network.membership import Membership
from potluck.errors import PotluckError
from potluck.placement.links import LinkTable
from potluck.placement.offering import offers
from potluck.placement.stage_reuse import Holding
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord
from potluck.types.memory import MemoryPlan
from potluck.types.node import NodeReport
from potluck.types.stage import StageSize

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCandidate:
    """A stage that other nodes may hold as a spare: as it is, or ``mapped``, which takes less
    memory.
    """

    stage: Holding
    memory: MemoryPlan
    mapped: MemoryPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareStage:
    """The stage ``index`` of a plan, to be held by an additional node."""

    index: int
    node_id: NodeId
    memory: MemoryPlan


def missing_spares(
    stages: Sequence[SpareCandidate], reports: Sequence[NodeReport], num_spares: int
) -> tuple[SpareStage, ...]:
    """Return the spares to load so that each stage has ``num_spares``; fewer if memory is short.

    Stages take turns, so that each has one spare before any has two. A spare is on no node that
    holds the stage already, or another part of it, and on the unit of the same name that has most
    room. If there is no room for its weights they are mapped. Pure.
    """
    holders = [_holders(each.stage, reports) for each in stages]
    partners = [
        {other.stage.node_id for other in stages if _is_of_group(each.stage, other.stage)}
        for each in stages
    ]
    offered = offers(reports, reports).offers
    left = {offer.unit: offer.usable_bytes for offer in offered}
    found: list[SpareStage] = []
    for number in range(num_spares):
        for index, each in enumerate(stages):
            if len(holders[index]) > number + 1:
                continue
            room = {
                node_id: usable
                for (node_id, unit_id), usable in left.items()
                if node_id not in holders[index] | partners[index]
                and unit_id == each.stage.stage.unit_id
            }
            node_id = max(room, key=lambda node: (room[node], node), default=None)
            if node_id is None:
                continue
            for memory in (each.memory, each.mapped):
                if memory is None:
                    continue
                num_bytes = memory.device_bytes if memory.is_on_device else memory.host_bytes
                if num_bytes <= room[node_id]:
                    left[node_id, each.stage.stage.unit_id] -= num_bytes
                    holders[index].add(node_id)
                    found.append(SpareStage(index=index, node_id=node_id, memory=memory))
                    break
    return tuple(found)


def _is_of_group(one: Holding, other: Holding) -> bool:
    """Return whether both are stages of one group's members."""
    first, second = one.stage.shard, other.stage.shard
    if first.part is None or second.part is None:
        return False
    return second in first.divided(first.part.shares)


def _holders(stage: Holding, reports: Sequence[NodeReport]) -> set[NodeId]:
    """Return the nodes that hold a stage, always including its own."""
    wanted = stage.stage
    return {stage.node_id} | {
        report.node_id
        for report in reports
        for held in report.held
        if held.deployment == wanted.deployment and held.shard == wanted.shard
    }


async def load_spares(
    membership: Membership,
    record: DeploymentRecord,
    size: StageSize,
    stages: Sequence[SpareCandidate],
    weights: ModelWeights | None,
    links: LinkTable,
) -> int:
    """Load spares of ``stages``, those of ``record``, where there is room, one by one.

    With ``weights``, nodes that have no files of their own get them by content. Return how many
    spares there are then. One that cannot be loaded is logged and left out.
    """
    reports, _ = await gather_reports(membership)
    num_spares = sum(len(_holders(each.stage, reports)) - 1 for each in stages)
    for spare in missing_spares(stages, reports, record.spec.num_spares):
        elsewhere = record.with_stage(spare.index, node_id=spare.node_id, memory=spare.memory)
        try:
            if weights is not None and record.status.files.manifest_for(spare.node_id) is not None:
                lacking = [(spare.node_id, elsewhere.shard(spare.index))]
                await prepare_weights(membership, elsewhere, weights, lacking, links)
            await load_stage(membership, elsewhere, size, spare.index, lambda progress: None)
            num_spares += 1
        except PotluckError as error:
            _log.warning(
                "%s: cannot load a spare of stage %d on node %s: %s",
                record.model_id,
                spare.index,
                spare.node_id,
                error.message,
            )
    return num_spares
