"""Spares: stages that further nodes hold, so that nothing has to be loaded when one is lost."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from potluck.cluster.calls import DeploymentRecord, HeldStage, NodeReport
from potluck.cluster.coordinator.keeping import Holding
from potluck.cluster.coordinator.offering import offers
from potluck.cluster.coordinator.planning import DeploymentSize
from potluck.cluster.coordinator.starting import load_stage
from potluck.cluster.coordinator.survey import gather_reports
from potluck.cluster.membership import Membership
from potluck.cluster.worker.messages import Progress
from potluck.errors import PotluckError

_log = logging.getLogger(__name__)


def missing_spares(
    stages: Sequence[Holding], reports: Sequence[NodeReport], num_spares: int
) -> tuple[Holding, ...]:
    """Return the stages to load as spares, and where, so that each has ``num_spares``; fewer if
    memory is short.

    Stages come in turns, so that each has one spare before any has two. A spare is on no node that
    holds the stage already, and on the unit of the same name that has most room. Pure.
    """
    holders = {
        index: {
            report.node_id
            for report in reports
            for held in report.held
            if _layers(held) == _layers(stage.stage) and held.deployment == stage.stage.deployment
        }
        | {stage.node_id}
        for index, stage in enumerate(stages)
    }
    left = {
        (offer.node_id, offer.unit_id): offer.usable_bytes
        for offer in offers(reports, reports).offers
    }
    found: list[Holding] = []
    for number in range(num_spares):
        for index, stage in enumerate(stages):
            needed = stage.stage.num_bytes
            if len(holders[index]) > number + 1:
                continue
            room = {
                unit: usable
                for unit, usable in left.items()
                if unit[0] not in holders[index]
                and unit[1] == stage.stage.unit_id
                and usable >= needed
            }
            if not room:
                continue
            node_id, unit_id = max(room, key=lambda unit: (room[unit], unit))
            left[node_id, unit_id] -= needed
            holders[index].add(node_id)
            found.append(replace(stage, node_id=node_id))
    return tuple(found)


async def load_spares(
    membership: Membership,
    record: DeploymentRecord,
    size: DeploymentSize,
    stages: Sequence[Holding],
) -> None:
    """Have spares of ``stages``, those of ``record``, loaded where there is room, one by one.

    One that cannot be loaded is logged and left out.
    """
    reports, _ = await gather_reports(membership)
    for spare in missing_spares(stages, reports, record.num_spares):
        index = next(
            number
            for number, stage in enumerate(stages)
            if _layers(stage.stage) == _layers(spare.stage)
        )
        there = list(record.stages)
        there[index] = msgspec.structs.replace(there[index], node_id=spare.node_id)
        try:
            await load_stage(
                membership,
                msgspec.structs.replace(record, stages=tuple(there)),
                size,
                index,
                _ignore,
            )
        except PotluckError as error:
            _log.warning(
                "%s: no spare of stage %d on node %s: %s",
                record.model_id,
                index,
                spare.node_id,
                error.message,
            )


def _layers(stage: HeldStage) -> tuple[int, int, bool, bool]:
    return stage.start_layer, stage.end_layer, stage.is_first, stage.is_last


def _ignore(progress: Progress) -> None:
    return
