"""Stages, predictions and measurements in JSON documents."""

from __future__ import annotations

from potluck.types.cluster import UnitId
from potluck.types.document import Amount, Count, Document, NodeIdText, PositiveCount
from potluck.types.groups import GroupPart
from potluck.types.placement import Basis


class LayerRange(Document, frozen=True, kw_only=True):
    """The decoder layers that a unit of a node has."""

    unit_id: UnitId
    start_layer: Count
    end_layer: Count
    """Exclusive."""


class StagePlace(LayerRange, frozen=True, kw_only=True):
    """A stage and its unit."""

    node_id: NodeIdText


class GroupedPlace(StagePlace, frozen=True, kw_only=True):
    """A stage, or the part of a group member, and its unit."""

    part: GroupPart | None
    """The part of a group's member, which has a share of every matrix; null for a unit that holds
    its layers alone."""


class StageMemory(Document, frozen=True, kw_only=True):
    """The maximum memory use of a stage, by purpose, in bytes."""

    weights: dict[str, Count]
    """By format."""
    cache_bytes: Count
    """Keys and values of all sequences."""
    state_bytes: Count
    """State slots of sequences and checkpoints; 0 for a model without state."""
    rope_bytes: Count
    """Rope tables."""
    scratch_bytes: Count
    """Intermediate results of a step."""
    staging_bytes: Count
    """Only used during loading."""
    process_bytes: Count
    """The worker itself and its edges."""
    is_on_device: bool
    """Weights, cache, states, rope tables and scratch are in the unit's own memory."""


class PlacedStageDocument(GroupedPlace, frozen=True, kw_only=True):
    """A stage on a unit, with its memory."""

    stage: Count
    num_bytes: Count
    """Maximum memory use in total."""
    memory: StageMemory


class StagePredictionDocument(Document, frozen=True, kw_only=True):
    """Predicted times of a stage within its engine, in seconds."""

    decode_seconds: Amount
    """A step of one sequence."""
    exchange_seconds: Amount
    """The part of ``decode_seconds`` that the members of a group spend in exchanges; 0 for a single
    unit."""
    loaded_seconds: Amount
    """A step in which the plan's ``num_streams`` decode."""
    prefill_seconds_per_token: Amount
    """A token of a prompt's longest chunks."""
    hop_seconds: Amount
    """To the next stage, or from the last one to the coordinator."""
    basis: Basis
    """``served``: steps of this model on the unit; ``measured``: the test of its backend;
    ``table``: published figures; ``assumed``: a cautious default."""


class PredictionDocument(Document, frozen=True, kw_only=True):
    """The predicted speed of a plan."""

    entry_seconds: Amount
    """From the coordinator to the first stage."""
    token_seconds: Amount
    """Per token of one stream."""
    tokens_per_second: Amount
    """Of one stream."""
    first_token_seconds: Amount
    """Time to the first token of a prompt of ``prompt_tokens``."""
    prompt_tokens: PositiveCount
    num_streams: PositiveCount
    total_tokens_per_second: Amount
    """Of ``num_streams`` streams together."""
    steps_in_flight: PositiveCount
    """Of ``num_streams`` streams."""
    bottleneck: Count | None
    """The stage that limits ``total_tokens_per_second``; null if the latency of the pipeline
    does."""
    margin: Amount
    """Measured times are expected within ``1 ± margin`` of the predicted ones."""
    gap: Amount
    """No plan is better by more than this fraction; 0 if this one was proved to be the best."""
