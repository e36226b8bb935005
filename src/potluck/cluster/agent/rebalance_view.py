"""The gain of a move to a better plan as JSON, as shown by ``potluck rebalance``."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.cluster.agent.speed_view import prediction_view
from potluck.cluster.calls import MoveOutcome, RebalanceReport
from potluck.types.deployment import StageRecord
from potluck.types.placement import Prediction


def rebalance_view(report: RebalanceReport) -> dict[str, object]:
    """Return one deployment of a document of schema ``potluck.rebalance/1``."""
    return {
        "model_id": report.model_id,
        "outcome": report.outcome.value,
        "reason": report.reason,
        "in_force": _plan_view(report.stages, report.in_force),
        "better": _better_view(report),
    }


def _better_view(report: RebalanceReport) -> dict[str, object] | None:
    """Return the plan that was moved to, or would be; None if there is none."""
    if report.outcome is MoveOutcome.STAYS or not report.new_stages:
        return None
    return {
        **_plan_view(report.new_stages, report.predicted),
        "gain": report.gain,
        "net_gain": report.net_gain,
        "load_bytes": report.load_bytes,
        "load_seconds": report.load_seconds,
        "pause_seconds": report.pause_seconds,
        "needs_room": report.needs_room,
    }


def _plan_view(stages: Sequence[StageRecord], prediction: Prediction | None) -> dict[str, object]:
    seconds: list[float | None] = [None] * len(stages)
    if prediction is not None and len(prediction.stages) == len(stages):
        seconds = [each.decode_seconds for each in prediction.stages]
    return {
        "stages": [
            {
                "stage": index,
                "node_id": stage.node_id,
                "unit_id": stage.unit_id,
                "start_layer": stage.start_layer,
                "end_layer": stage.end_layer,
                "num_bytes": stage.memory.total_bytes,
                "decode_seconds": decode_seconds,
            }
            for index, (stage, decode_seconds) in enumerate(zip(stages, seconds, strict=True))
        ],
        "prediction": prediction_view(prediction),
    }
