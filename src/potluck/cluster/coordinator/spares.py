"""Spares: stages that further nodes hold, so that nothing has to be loaded when one is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from potluck.cluster.calls import DeploymentRecord
from potluck.cluster.coordinator.planning import DeploymentSize
from potluck.cluster.coordinator.starting import load_stage
from potluck.cluster.coordinator.survey import gather_reports
from potluck.cluster.membership import Membership
from potluck.cluster.worker.messages import Progress
from potluck.errors import PotluckError
from potluck.placement.keeping import Holding
from potluck.placement.offering import offers
from potluck.types.cluster import NodeId
from potluck.types.memory import MemoryPlan
from potluck.types.node import HeldStage, NodeReport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparing:
    """A stage that may be held elsewhere, too: as it is, or ``mapped``, which takes less memory."""

    stage: Holding
    memory: MemoryPlan
    mapped: MemoryPlan | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """The stage ``index`` of a plan, to be held by a further node."""

    index: int
    node_id: NodeId
    memory: MemoryPlan


def missing_spares(
    stages: Sequence[Sparing], reports: Sequence[NodeReport], num_spares: int
) -> tuple[Spare, ...]:
    """Return the spares to load so that each stage has ``num_spares``; fewer if memory is short.

    Stages come in turns, so that each has one spare before any has two. A spare is on no node that
    holds the stage already, and on the unit of the same name that has most room. Where there is no
    room for its weights they are mapped. Pure.
    """
    holders = [_holders(each.stage, reports) for each in stages]
    offered = offers(reports, reports).offers
    left = {(offer.node_id, offer.unit_id): offer.usable_bytes for offer in offered}
    found: list[Spare] = []
    for number in range(num_spares):
        for index, each in enumerate(stages):
            if len(holders[index]) > number + 1:
                continue
            room = {
                node_id: usable
                for (node_id, unit_id), usable in left.items()
                if node_id not in holders[index] and unit_id == each.stage.stage.unit_id
            }
            node_id = max(room, key=lambda node: (room[node], node), default=None)
            if node_id is None:
                continue
            for memory in (each.memory, each.mapped):
                if memory is not None and memory.host_bytes <= room[node_id]:
                    left[node_id, each.stage.stage.unit_id] -= memory.host_bytes
                    holders[index].add(node_id)
                    found.append(Spare(index=index, node_id=node_id, memory=memory))
                    break
    return tuple(found)


def _holders(stage: Holding, reports: Sequence[NodeReport]) -> set[NodeId]:
    """The nodes that hold a stage; its own in any case."""
    wanted = stage.stage
    return {stage.node_id} | {
        report.node_id
        for report in reports
        for held in report.held
        if held.deployment == wanted.deployment and _layers(held) == _layers(wanted)
    }


async def load_spares(
    membership: Membership,
    record: DeploymentRecord,
    size: DeploymentSize,
    stages: Sequence[Sparing],
) -> int:
    """Have spares of ``stages``, those of ``record``, loaded where there is room, one by one.

    Return how many there are then. One that cannot be loaded is logged and left out.
    """
    reports, _ = await gather_reports(membership)
    num_spares = sum(len(_holders(each.stage, reports)) - 1 for each in stages)
    for spare in missing_spares(stages, reports, record.num_spares):
        there = list(record.stages)
        there[spare.index] = msgspec.structs.replace(
            there[spare.index], node_id=spare.node_id, memory=spare.memory
        )
        elsewhere = msgspec.structs.replace(record, stages=tuple(there))
        try:
            await load_stage(membership, elsewhere, size, spare.index, _ignore)
            num_spares += 1
        except PotluckError as error:
            _log.warning(
                "%s: no spare of stage %d on node %s: %s",
                record.model_id,
                spare.index,
                spare.node_id,
                error.message,
            )
    return num_spares


def _layers(stage: HeldStage) -> tuple[int, int, bool, bool]:
    return stage.start_layer, stage.end_layer, stage.has_embedding, stage.has_head


def _ignore(progress: Progress) -> None:
    return
