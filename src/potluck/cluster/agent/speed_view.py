"""Predicted and measured speeds in documents, for ``view`` and others that show a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from potluck.types.deployment import DeploymentRecord
from potluck.types.documents.base import document_of
from potluck.types.documents.cluster import SpeedDocument, StageTimesDocument
from potluck.types.documents.stages import PredictionDocument, StagePredictionDocument
from potluck.types.gateway import GenerationTotals, ModelMetrics, StageTimes, TokenSpeed
from potluck.types.placement import Prediction, StagePrediction


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
    units = [(stage.node_id, stage.unit_id) for stage in record.stages]
    if units != [(each.node_id, each.unit_id) for each in predicted]:
        return [None] * len(units)
    return [document_of(StagePredictionDocument, each) for each in predicted]


def speed_view(record: DeploymentRecord, metrics: ModelMetrics | None) -> SpeedDocument:
    """Return the measured speed of a deployment as a whole; nothing of an earlier epoch.

    ``first_token_seconds`` is the mean over the ``num_first_tokens`` sequences that were given
    their first token since the coordinator started, so it may include those of earlier epochs.
    """
    speed = TokenSpeed()
    generated = GenerationTotals()
    if metrics is not None and metrics.epoch == record.epoch.number:
        speed, generated = metrics.speed, metrics.generated
    number = generated.num_first_tokens
    return document_of(
        SpeedDocument,
        speed,
        first_token_seconds=generated.first_token_seconds / number if number else None,
        num_first_tokens=number or None,
    )


def stage_times(
    record: DeploymentRecord, metrics: ModelMetrics | None
) -> Sequence[StageTimesDocument]:
    """Return the measured times of each stage of ``record`` in the current epoch."""
    times: dict[int, StageTimes] = {}
    if metrics is not None and metrics.epoch == record.epoch.number:
        times = {each.stage: each.times for each in metrics.stages}
    return [
        document_of(StageTimesDocument, times.get(index, StageTimes()))
        for index in range(len(record.stages))
    ]


def _is_finite(prediction: Prediction) -> bool:
    """Whether JSON can represent it: records come from other nodes."""
    whole = dataclasses.asdict(prediction)
    documents = (whole, *whole["stages"])
    values = [value for document in documents for value in document.values()]
    return all(math.isfinite(value) for value in values if isinstance(value, float))
