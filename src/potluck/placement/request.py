"""What is to be placed where, and what is expected of an answer. The search is in ``place``.

This module does without NumPy: an agent that never plans does not load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.placement.candidates import Candidate
from potluck.placement.cuts import cut_of
from potluck.placement.links import LinkTable
from potluck.placement.prediction import predict
from potluck.placement.sharing import Pool
from potluck.types.cluster import NodeId
from potluck.types.placement import PlacedStage, Prediction, Preferences


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """A model to place on ``candidates``, and what for.

    Each candidate may use its bytes as if no other drew on the same memory; ``pools``, whose
    members are indices of candidates, say what several may use together. Steps start and end at the
    ``coordinator``, and have at most ``max_step_tokens``.
    """

    candidates: tuple[Candidate, ...]
    links: LinkTable
    coordinator: NodeId
    preferences: Preferences
    max_step_tokens: int
    pools: tuple[Pool, ...] = ()

    @property
    def num_layers(self) -> int:
        """Of the model."""
        return len(self.candidates[0].cost.layer_bytes)


def prediction_of(
    request: PlaceRequest, stages: Sequence[PlacedStage], *, gap: float = 0.0
) -> Prediction:
    """Return what is predicted of stages, each of them on one of the candidates."""
    units = {(each.node_id, each.unit_id): i for i, each in enumerate(request.candidates)}
    return predict(
        request.candidates,
        [cut_of(units[stage.node_id, stage.unit_id], stage.shard) for stage in stages],
        request.links,
        coordinator=request.coordinator,
        preferences=request.preferences,
        max_step_tokens=request.max_step_tokens,
        gap=gap,
    )
