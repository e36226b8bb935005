"""Stages, predictions and moves as parts of documents. Unlike ``plan_view``, it loads no NumPy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from potluck.types.deployment import DeploymentRecord, MoveOutcome, RebalanceReport, StageRecord
from potluck.types.document import document_of
from potluck.types.documents.plan import (
    BetterPlan,
    MoveDocument,
    MovePlan,
    MoveStage,
)
from potluck.types.documents.stages import (
    PredictionDocument,
    StageMemory,
    StagePredictionDocument,
)
from potluck.types.placement import Prediction, StagePrediction


def placed_fields(index: int, stage: StageRecord) -> dict[str, Any]:
    """Return the fields of ``PlacedStageDocument`` that ``stage`` does not have as such."""
    memory = stage.memory
    return {
        "stage": index,
        "num_bytes": memory.total_bytes,
        "memory": document_of(StageMemory, memory, weights=dict(memory.weights)),
    }


def fields_in_force(record: DeploymentRecord) -> dict[str, Any]:
    """Return what is in force of the settings, as documents about the deployment show it."""
    status, plan = record.status, record.status.plan
    return {
        "context_tokens": status.context_tokens,
        "cache_tokens": status.cache_tokens,
        "num_states": status.num_states,
        "num_layers": record.facts.num_layers,
        "quantization": plan.quantization,
        "remarks": plan.remarks,
        "arithmetic": plan.arithmetic,
        "arithmetic_note": plan.arithmetic_note,
    }


def prediction_view(prediction: Prediction | None) -> PredictionDocument | None:
    """Return the prediction for a plan as a whole; None if there is none."""
    if prediction is None or not _is_finite(prediction):
        return None
    return document_of(PredictionDocument, prediction)


def stage_predictions(record: DeploymentRecord) -> Sequence[StagePredictionDocument | None]:
    """Return the prediction for each stage of ``record``."""
    prediction = record.status.plan.prediction
    predicted: Sequence[StagePrediction] = ()
    if prediction is not None and _is_finite(prediction):
        predicted = prediction.stages
    units = [stage.unit for stage in record.stages]
    if units != [each.unit for each in predicted]:
        return [None] * len(units)
    return [document_of(StagePredictionDocument, each) for each in predicted]


def _is_finite(prediction: Prediction) -> bool:
    """Return whether JSON can represent a value: records come from other nodes."""
    whole = dataclasses.asdict(prediction)
    documents = (whole, *whole["stages"])
    values = [value for document in documents for value in document.values()]
    return all(math.isfinite(value) for value in values if isinstance(value, float))


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
