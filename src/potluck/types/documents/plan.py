"""Plans and moves to better ones as JSON documents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Objective, Quantization
from potluck.types.cluster import UnitId
from potluck.types.document import (
    Amount,
    Count,
    Document,
    NodeIdText,
    NonEmpty,
    PositiveAmount,
    PositiveCount,
    Tokens,
)
from potluck.types.documents.stages import (
    GroupedPlace,
    LayerRange,
    PlacedStageDocument,
    PredictionDocument,
    StagePlace,
    StagePredictionDocument,
)
from potluck.types.placement import Basis

Gain = Annotated[float, msgspec.Meta(ge=-1)]


class PlannedNode(Document, frozen=True, kw_only=True):
    """A node that was considered."""

    node_id: NodeIdText
    name: str
    """The host's name, or the name in the fleet file."""


class PlannedStage(PlacedStageDocument, frozen=True, kw_only=True):
    """A stage of a plan."""

    usable_bytes: int | None
    """Memory for stages on the unit, which is the machine's unless ``is_on_device``; null if the
    node no longer answers."""
    predicted: StagePredictionDocument | None


class DraftStage(GroupedPlace, frozen=True, kw_only=True):
    """A stage of the draft model."""

    num_bytes: Count
    """Maximum memory use."""


class DraftDocument(Document, frozen=True, kw_only=True):
    """The draft model, whose memory is reserved before the model is planned."""

    model: str
    """MODEL, as the nodes read it: a path, a hub id, or ``demo``."""
    is_deployed: bool
    """It has already been deployed, and its memory is in use."""
    stages: tuple[DraftStage, ...]


class AlternativeStage(LayerRange, frozen=True, kw_only=True):
    """A stage of an alternative."""

    node_id: NodeIdText | None
    """null for the added unit."""
    is_added: bool
    """It is on the added unit."""


class AlternativeDocument(Document, frozen=True, kw_only=True):
    """The best plan with one unit more or fewer."""

    node_id: NodeIdText
    """The node of the unit that is left out, or that the added unit resembles."""
    unit_id: UnitId
    stages: Annotated[tuple[AlternativeStage, ...], msgspec.Meta(min_length=1)]
    token_seconds: PositiveAmount
    tokens_per_second: PositiveAmount
    first_token_seconds: Amount
    total_tokens_per_second: PositiveAmount


class PipelineDocument(Document, frozen=True, kw_only=True):
    """One of several pipelines, with its share of the streams."""

    layout: NonEmpty
    """The value of ``--layout`` that deploys it."""
    stages: Annotated[tuple[StagePlace, ...], msgspec.Meta(min_length=1)]
    num_streams: PositiveCount
    token_seconds: PositiveAmount
    first_token_seconds: Amount
    total_tokens_per_second: PositiveAmount


class SideBySide(Document, frozen=True, kw_only=True):
    """Several pipelines without common units that together serve the streams faster than the plan.

    Each would be a deployment of its own.
    """

    total_tokens_per_second: PositiveAmount
    pipelines: Annotated[tuple[PipelineDocument, ...], msgspec.Meta(min_length=2)]
    """The fastest first."""


class OtherPlan(Document, frozen=True, kw_only=True):
    """A plan that was not chosen."""

    stages: Annotated[tuple[GroupedPlace, ...], msgspec.Meta(min_length=1)]
    token_seconds: PositiveAmount
    exchange_seconds: Amount
    """The part of ``token_seconds`` that groups spend in exchanges."""
    first_token_seconds: Amount
    total_tokens_per_second: PositiveAmount


class RejectedUnit(Document, frozen=True, kw_only=True):
    """A unit without a stage."""

    node_id: NodeIdText
    unit_id: UnitId
    reason: NonEmpty
    added_seconds: float | None
    """How much longer a token of one stream would take with the unit; null if unknown."""


class PlanDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck plan --json`` and ``POST /cluster/plan``."""

    schema: Literal["potluck.plan/1"] = "potluck.plan/1"
    model: str
    """MODEL, as the nodes read it: a path, a hub id, or ``demo``."""
    context_tokens: Tokens
    cache_tokens: Tokens
    """Shared by all sequences."""
    num_states: Count
    """State slots of every stage; 0 for a model without state."""
    num_layers: PositiveCount
    quantization: Quantization
    remarks: tuple[str, ...]
    """Weights with a format other than that of the quantization, with the reasons."""
    arithmetic: Arithmetic | None
    """Arithmetic of every stage on a CPU; null until the first plan has chosen one."""
    arithmetic_note: str
    """What the arithmetic gains or costs; may be empty."""
    is_mapped: bool
    objective: Objective
    num_streams: PositiveCount
    """Concurrent streams, for plans for throughput."""
    has_layout: bool
    """The stages are those of ``--layout``."""
    coordinator: NodeIdText
    """The node that starts steps and receives the tokens."""
    nodes: tuple[PlannedNode, ...]
    """All nodes that were asked, or that the fleet file describes."""
    stages: tuple[PlannedStage, ...]
    draft: DraftDocument | None
    prediction: PredictionDocument | None
    """null if the plan was made without regard to speed."""
    link_basis: Basis | None
    """The basis of the links, if it widens the margin."""
    one_unit_fewer: AlternativeDocument | None = None
    """The best plan on all units but one; null if there is none."""
    one_unit_more: AlternativeDocument | None = None
    """The best plan with another unit like the fastest; null if it was not searched."""
    side_by_side: SideBySide | None = None
    """null if no such pipelines were found or the objective is not throughput."""
    in_groups: OtherPlan | None = None
    """The best plan with groups that divide matrices, if the plan has no group; null if there is
    none or it was not searched."""
    without_groups: OtherPlan | None = None
    """The best plan without groups, if the plan has one; null if there is none or it was not
    searched."""
    rejections: tuple[RejectedUnit, ...]


class MoveStage(StagePlace, frozen=True, kw_only=True):
    """A stage of a plan before or after a move."""

    stage: Count
    num_bytes: Count
    """Maximum memory use."""
    decode_seconds: Amount | None
    """Predicted time of a step of one sequence."""


class MovePlan(Document, frozen=True, kw_only=True):
    """The plan before a move."""

    stages: tuple[MoveStage, ...]
    prediction: PredictionDocument | None


class BetterPlan(MovePlan, frozen=True, kw_only=True):
    """A faster plan, and what the move costs."""

    gain: Gain
    """Gain in predicted tokens per second of the objective; 0.2 is a fifth more."""
    net_gain: Gain
    """The gain without the cost of the move and the uncertainty of the prediction; -1 if the plan
    is not expected to last as long as the move."""
    load_bytes: Count
    load_seconds: Amount
    pause_seconds: Amount
    """Time without tokens."""
    needs_room: bool
    """Stages in use must be released first, so nothing is served while others are loaded."""


class MoveDocument(Document, frozen=True, kw_only=True):
    """A deployment and its better plan, if there is one."""

    model_id: str
    outcome: Literal["stays", "possible", "moved", "failed"]
    """``possible``: with ``--dry-run``, there is a faster plan; ``failed``: the previous plan still
    serves."""
    reason: str
    """Why it stays or failed, or what would happen automatically."""
    in_force: MovePlan
    """The plan that served at the time of the request, predicted from current measurements."""
    better: BetterPlan | None


class RebalanceDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck rebalance --json``."""

    schema: Literal["potluck.rebalance/1"] = "potluck.rebalance/1"
    is_dry_run: bool
    deployments: tuple[MoveDocument, ...]
