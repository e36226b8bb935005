"""The gain of a move to a better plan, as shown by ``potluck rebalance``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potluck.cluster.agent.speed_view import prediction_view
from potluck.cluster.calls import MoveOutcome, RebalanceReport
from potluck.types.deployment import StageRecord
from potluck.types.documents.base import document_of
from potluck.types.documents.plan import BetterPlan, MoveDocument, MovePlan, MoveStage
from potluck.types.placement import Prediction


def rebalance_view(report: RebalanceReport) -> MoveDocument:
    """Return one deployment and the plan that it was moved to, or would be, if there is one."""
    better = None
    if report.outcome is not MoveOutcome.STAYS and report.new_stages:
        better = document_of(BetterPlan, report, **_plan(report.new_stages, report.predicted))
    in_force = MovePlan(**_plan(report.stages, report.in_force))
    return document_of(
        MoveDocument, report, outcome=report.outcome.value, in_force=in_force, better=better
    )


def _plan(stages: Sequence[StageRecord], prediction: Prediction | None) -> dict[str, Any]:
    """Return the fields of ``MovePlan``."""
    seconds: list[float | None] = [None] * len(stages)
    if prediction is not None and len(prediction.stages) == len(stages):
        seconds = [each.decode_seconds for each in prediction.stages]
    return {
        "stages": tuple(
            document_of(
                MoveStage,
                stage,
                stage=index,
                num_bytes=stage.memory.total_bytes,
                decode_seconds=decode_seconds,
            )
            for index, (stage, decode_seconds) in enumerate(zip(stages, seconds, strict=True))
        ),
        "prediction": prediction_view(prediction),
    }
