"""Predicted and measured speeds in documents, for ``view`` and others that show a plan."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.types.deployment import DeploymentRecord
from potluck.types.documents.base import document_of
from potluck.types.documents.cluster import SpeedDocument, StageTimesDocument
from potluck.types.gateway import GenerationTotals, ModelMetrics, StageTimes, TokenSpeed


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
