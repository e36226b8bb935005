"""Predictions of plans, by hand."""

from __future__ import annotations

from potluck.types.cluster import NodeId, UnitId
from potluck.types.placement import Basis, Prediction, StagePrediction


def stage_prediction(node_id: NodeId) -> StagePrediction:
    return StagePrediction(
        node_id=node_id,
        unit_id=UnitId("cpu/native"),
        decode_seconds=0.021,
        loaded_seconds=0.05,
        prefill_seconds_per_token=0.0015,
        hop_seconds=0.0002,
        basis=Basis.MEASURED,
    )


def prediction(*nodes: NodeId) -> Prediction:
    """Of a stage on the CPU of each node."""
    return Prediction(
        stages=tuple(map(stage_prediction, nodes)),
        entry_seconds=0.0003,
        token_seconds=1 / 45,
        tokens_per_second=45.0,
        first_token_seconds=0.8,
        prompt_tokens=512,
        num_streams=8,
        total_tokens_per_second=120.0,
        steps_in_flight=2,
        bottleneck=0,
        margin=0.15,
    )
