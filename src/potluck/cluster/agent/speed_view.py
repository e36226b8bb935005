"""Predicted and measured speeds in JSON's types, for ``view`` and whatever else shows a plan."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from potluck.cluster.calls import DeploymentRecord
from potluck.types.gateway import ModelMetrics, StageTimes, TokenSpeed
from potluck.types.placement import Prediction, StagePrediction


def prediction_view(prediction: Prediction | None) -> dict[str, object] | None:
    """Return what is predicted of a plan as a whole; None where nothing is."""
    if prediction is None or not _is_finite(prediction):
        return None
    return {
        "token_seconds": prediction.token_seconds,
        "tokens_per_second": prediction.tokens_per_second,
        "num_streams": prediction.num_streams,
        "total_tokens_per_second": prediction.total_tokens_per_second,
        "steps_in_flight": prediction.steps_in_flight,
        "bottleneck": prediction.bottleneck,
        "first_token_seconds": prediction.first_token_seconds,
        "prompt_tokens": prediction.prompt_tokens,
        "entry_seconds": prediction.entry_seconds,
        "margin": prediction.margin,
        "gap": prediction.gap,
    }


def stage_predictions(record: DeploymentRecord) -> list[dict[str, object] | None]:
    """Return what is predicted of each stage of ``record``."""
    prediction = record.prediction
    predicted: Iterable[StagePrediction] = ()
    if prediction is not None and _is_finite(prediction):
        predicted = prediction.stages
    units = [(stage.node_id, stage.unit_id) for stage in record.stages]
    if units != [(each.node_id, each.unit_id) for each in predicted]:
        return [None] * len(units)
    return [
        {
            "decode_seconds": each.decode_seconds,
            "loaded_seconds": each.loaded_seconds,
            "prefill_seconds_per_token": each.prefill_seconds_per_token,
            "hop_seconds": each.hop_seconds,
            "basis": each.basis.value,
        }
        for each in predicted
    ]


def speed_view(record: DeploymentRecord, metrics: ModelMetrics | None) -> dict[str, object]:
    """Return what was measured of a deployment as a whole, by the epoch in force."""
    speed = TokenSpeed()
    if metrics is not None and metrics.epoch == record.epoch.number:
        speed = metrics.speed
    return dataclasses.asdict(speed)


def stage_times(record: DeploymentRecord, metrics: ModelMetrics | None) -> list[dict[str, object]]:
    """Return what was measured of each stage of ``record`` by the epoch in force."""
    times: dict[int, StageTimes] = {}
    if metrics is not None and metrics.epoch == record.epoch.number:
        times = {each.stage: each.times for each in metrics.stages}
    return [
        dataclasses.asdict(times.get(index, StageTimes())) for index in range(len(record.stages))
    ]


def _is_finite(prediction: Prediction) -> bool:
    """Whether JSON can tell it: records come from other nodes."""
    whole = dataclasses.asdict(prediction)
    documents = (whole, *whole["stages"])
    values = [value for document in documents for value in document.values()]
    return all(math.isfinite(value) for value in values if isinstance(value, float))
