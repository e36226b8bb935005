"""Compare a better plan with the one in force: predictions for both, and the cost of moving.

Pure.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from potluck.placement.grouping import prediction_of
from potluck.placement.planned import PlannedModel, PlannedStage
from potluck.placement.planning import plan_record
from potluck.placement.rebalancing import (
    LOAD_BYTES_PER_SECOND,
    SWITCH_SECONDS,
    Judgement,
    MoveCost,
    rate_of,
)
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, MoveOutcome, RebalanceReport, StageRecord
from potluck.types.placement import PlacedStage, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanComparison:
    """The best plan as if nothing was loaded, and predictions for both plans from current
    figures.
    """

    planned: PlannedModel
    predicted: Prediction
    in_force: Prediction


def compared(planned: PlannedModel, record: DeploymentRecord) -> PlanComparison | None:
    """Return a plan to compare with that of ``record``, both predicted from the figures of the
    former.

    Return None if there is no prediction, or if a stage in force is on a unit that has none.
    """
    request = planned.request
    if request is None or planned.prediction is None:
        return None
    predicted = {(each.node_id, each.unit_id) for each in request.candidates}
    if any((each.node_id, each.unit_id) not in predicted for each in record.stages):
        return None
    in_force = [
        PlacedStage(
            node_id=stage.node_id,
            unit_id=stage.unit_id,
            shard=record.shard(index),
            num_bytes=stage.memory.host_bytes + stage.memory.device_bytes,
        )
        for index, stage in enumerate(record.stages)
    ]
    return PlanComparison(
        planned=planned,
        predicted=planned.prediction,
        in_force=prediction_of(request, in_force),
    )


def is_in_force(planned: PlannedModel, stages: Collection[StageRecord]) -> bool:
    """Return whether a plan has the same stages, in the same places."""
    return [_place_of(each) for each in planned.stages] == [
        (each.node_id, each.unit_id, each.start_layer, each.end_layer, each.part) for each in stages
    ]


def _place_of(stage: PlannedStage) -> tuple[object, ...]:
    shard = stage.plan.shard
    return stage.node_id, stage.unit_id, shard.start_layer, shard.end_layer, shard.part


def cost_of_move(
    planned: PlannedModel,
    stages: Collection[StageRecord],
    predicted: Prediction,
    *,
    num_live_tokens: int,
) -> MoveCost:
    """Return the cost of moving from ``stages`` to a plan. Nodes load concurrently."""
    kept = {
        (
            each.node_id,
            each.stage.unit_id,
            each.stage.start_layer,
            each.stage.end_layer,
            each.stage.part,
        )
        for each in planned.kept
    }
    num_bytes: Counter[NodeId] = Counter()
    for stage in planned.stages:
        if _place_of(stage) not in kept:
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
    record: DeploymentRecord, alternative: PlanComparison, judged: Judgement, cost: MoveCost
) -> RebalanceReport:
    """Return the report about a better plan for users."""
    after = plan_record(alternative.planned).stages
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
        rate=rate_of(alternative.in_force, record.spec.objective),
        new_rate=rate_of(alternative.predicted, record.spec.objective),
        load_bytes=cost.num_bytes,
        load_seconds=cost.load_seconds,
        pause_seconds=cost.pause_seconds,
        needs_room=cost.needs_room,
    )
