"""A better plan beside the one in force: what is predicted of both, and what the way there costs.

Pure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from potluck.cluster.calls import DeploymentRecord, MoveOutcome, RebalanceReport, StageRecord
from potluck.cluster.coordinator.planning import placement_fields
from potluck.placement.planned import PlannedModel
from potluck.placement.rebalancing import (
    LOAD_BYTES_PER_SECOND,
    SWITCH_SECONDS,
    Judgement,
    MoveCost,
    rate_of,
)
from potluck.placement.request import prediction_of
from potluck.types.cluster import NodeId
from potluck.types.placement import PlacedStage, Prediction
from potluck.types.program import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best plan as if nothing was loaded, and what is predicted of both by present figures."""

    planned: PlannedModel
    predicted: Prediction
    in_force: Prediction


def compared(planned: PlannedModel, record: DeploymentRecord) -> Alternative | None:
    """Return a plan beside the one of ``record``, both predicted by the figures of the former.

    None if there is no prediction, or if a stage in force is on a unit that has none.
    """
    request, last = planned.request, len(record.stages) - 1
    if request is None or planned.prediction is None:
        return None
    predicted = {(each.node_id, each.unit_id) for each in request.candidates}
    if any((each.node_id, each.unit_id) not in predicted for each in record.stages):
        return None
    in_force = [
        PlacedStage(
            node_id=stage.node_id,
            unit_id=stage.unit_id,
            shard=Shard(
                start_layer=stage.start_layer,
                end_layer=stage.end_layer,
                num_layers=record.num_layers,
                has_embedding=index == 0,
                has_head=index == last,
            ),
            num_bytes=stage.memory.host_bytes + stage.memory.device_bytes,
        )
        for index, stage in enumerate(record.stages)
    ]
    return Alternative(
        planned=planned,
        predicted=planned.prediction,
        in_force=prediction_of(request, in_force),
    )


def is_in_force(planned: PlannedModel, stages: Collection[StageRecord]) -> bool:
    """Return whether a plan has the same stages, in the same places."""
    return [
        (each.node_id, each.unit_id, each.plan.shard.start_layer, each.plan.shard.end_layer)
        for each in planned.stages
    ] == [(each.node_id, each.unit_id, each.start_layer, each.end_layer) for each in stages]


def cost_of_move(
    planned: PlannedModel,
    stages: Collection[StageRecord],
    predicted: Prediction,
    *,
    num_live_tokens: int,
) -> MoveCost:
    """Return what it takes to get to a plan from ``stages``. Nodes load at the same time."""
    kept = {
        (each.node_id, each.stage.unit_id, each.stage.start_layer, each.stage.end_layer)
        for each in planned.kept
    }
    num_bytes: Counter[NodeId] = Counter()
    for stage in planned.stages:
        shard = stage.plan.shard
        if (stage.node_id, stage.unit_id, shard.start_layer, shard.end_layer) not in kept:
            num_bytes[stage.node_id] += stage.plan.read_bytes
    rates: dict[NodeId, float] = {}
    for record in stages:
        if record.read_bytes and record.load_seconds:
            rates[record.node_id] = record.read_bytes / record.load_seconds
    usual = statistics.median(rates.values()) if rates else LOAD_BYTES_PER_SECOND
    return MoveCost(
        num_bytes=num_bytes.total(),
        load_seconds=max(
            (count / rates.get(node, usual) for node, count in num_bytes.items()), default=0.0
        ),
        replay_seconds=SWITCH_SECONDS
        + num_live_tokens * predicted.first_token_seconds / predicted.prompt_tokens,
        needs_room=planned.needs_room,
    )


def report_of(
    record: DeploymentRecord, alternative: Alternative, judged: Judgement, cost: MoveCost
) -> RebalanceReport:
    """Return what users are told of a better plan."""
    after: Any = placement_fields(alternative.planned)["stages"]
    return RebalanceReport(
        model_id=record.model_id,
        outcome=MoveOutcome.POSSIBLE,
        reason="",
        stages=record.stages,
        in_force=alternative.in_force,
        new_stages=after,
        predicted=alternative.predicted,
        gain=judged.gain,
        net_gain=judged.net_gain,
        rate=rate_of(alternative.in_force, record.objective),
        new_rate=rate_of(alternative.predicted, record.objective),
        load_bytes=cost.num_bytes,
        load_seconds=cost.load_seconds,
        pause_seconds=cost.pause_seconds,
        needs_room=cost.needs_room,
    )
