"""The cluster and its deployments as JSON documents."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, UnitId
from potluck.types.deployment import DeploymentState, LoadingStage, Verification
from potluck.types.deployment_spec import DeploymentSpec
from potluck.types.document import (
    Amount,
    Count,
    Document,
    NodeIdText,
    NonEmpty,
    PositiveCount,
    Tokens,
)
from potluck.types.documents.stages import (
    LayerRange,
    PlacedStageDocument,
    PredictionDocument,
    StagePredictionDocument,
)
from potluck.types.groups import GroupPart
from potluck.types.hardware import ProbeReport, Rates
from potluck.types.placement import Rejection
from potluck.types.unit import Role


class HeldStageDocument(LayerRange, frozen=True, kw_only=True):
    """A stage that a worker has loaded."""

    part: GroupPart | None
    """The part of a group's member; null for a unit that holds its layers alone."""
    epoch: Epoch
    num_bytes: int
    """Maximum use of the machine's memory."""
    device_bytes: int
    """Maximum use of the unit's own memory."""
    is_mapped: bool
    """The weights are mapped from a file."""


class NodeStage(HeldStageDocument, frozen=True, kw_only=True):
    """A loaded stage of a node, in use or not."""

    deployment: DeploymentId


class Spare(HeldStageDocument, frozen=True, kw_only=True):
    """A loaded stage of a deployment that the plan in force does not use."""

    node_id: NodeIdText


class UnitDocument(Document, frozen=True, kw_only=True):
    """A unit: a device through a backend."""

    unit_id: UnitId
    backend: str
    description: str
    """Description of the device."""
    role: Role
    """``reserve``: only used for a model that does not fit without it."""
    reason: str
    """Reason for the role; empty for a unit that serves because there is no alternative."""
    usable_bytes: int
    """Memory available for new stages."""
    is_shared: bool
    """The unit uses the machine's memory."""
    num_threads: PositiveCount
    rates: Rates
    """Measured with a small program and one sequence."""
    arithmetics: tuple[Arithmetic, ...]
    """Arithmetics that can be chosen; none for a backend with an arithmetic of its own."""


class ReadyNode(Document, frozen=True, kw_only=True, tag_field="state", tag="ready"):
    """A node that has answered."""

    node_id: NodeIdText
    name: str
    """Name of the machine."""
    address: str
    """HOST:PORT for other nodes."""
    http_address: str | None
    """Address for clients."""
    version: str
    host_id: str
    """Equal for all agents on one machine."""
    available_bytes: int
    available_reason: str
    """What limits ``available_bytes``."""
    memory_limit_bytes: Count | None
    held: tuple[NodeStage, ...]
    units: tuple[UnitDocument, ...]
    hardware: ProbeReport
    """The probe's results so far: as in ``potluck probe --json``, without schema, version and
    units."""


class DrainingNode(ReadyNode, frozen=True, kw_only=True, tag_field="state", tag="draining"):
    """A node that is leaving."""


class SilentNode(Document, frozen=True, kw_only=True, tag_field="state", tag="silent"):
    """A member that does not answer."""

    node_id: NodeIdText


class IncompatibleNode(Document, frozen=True, kw_only=True):
    """A node with another wire version."""

    node_id: NodeIdText
    wire_version: int


class LinkDocument(Document, frozen=True, kw_only=True):
    """A measured link, in one direction."""

    source: NodeIdText = msgspec.field(name="from")
    """The node that measured it."""
    target: NodeIdText = msgspec.field(name="to")
    latency_seconds: Amount
    """One way."""
    bytes_per_second: Amount
    num_samples: int
    age_seconds: Amount
    """Time since the last measurement."""


class StageDocument(PlacedStageDocument, frozen=True, kw_only=True):
    """A stage of the plan in force."""

    read_bytes: Count | None
    """Bytes read from the model's files; null until it is loaded."""
    load_seconds: Amount | None
    progress: LoadingStage | None
    """null before loading begins and once it is finished."""
    predicted: StagePredictionDocument | None
    """null without a prediction."""


class TransferDocument(Document, frozen=True, kw_only=True):
    """The progress of a node in getting the files that its stages read."""

    node_id: str
    done_bytes: Count
    total_bytes: Count
    by_source: dict[str, Count]
    """Bytes by source: ``disk``, ``hub``, or a node's id."""
    bytes_per_second: Amount
    seconds_left: Amount | None


class DeploymentDocument(DeploymentSpec, Document, frozen=True, kw_only=True):
    """A deployment: what was asked for, replaced by what is in force."""

    deployment: DeploymentId
    model: str
    """MODEL, as the nodes read it: a path, a hub id, or ``demo``."""
    model_id: str
    """Name for clients."""
    state: DeploymentState
    reason: str
    """Why it is not ready; empty otherwise."""
    epoch: Epoch
    has_quorum: bool
    """Enough of the nodes that knew of it agreed to this epoch; false on one side of a
    partition."""
    created: Count
    """Seconds since 1970."""
    context_tokens: Tokens
    cache_tokens: Tokens
    """Shared by all sequences."""
    num_states: Count
    """State slots of every stage; 0 for a model without state."""
    num_layers: PositiveCount
    quantization: Quantization
    remarks: tuple[str, ...]
    """Weights with a format other than that of the quantization, with the reasons."""
    arithmetic: Arithmetic | None  # type: ignore[assignment]
    """Arithmetic of every stage on a CPU; null until the first plan has chosen one."""
    arithmetic_note: str
    """What the arithmetic gains or costs; may be empty."""
    done_bytes: Count
    """Bytes of the weights loaded so far in this epoch."""
    total_bytes: Count
    """0 while unknown."""
    num_recoveries: Count
    """Number of times that it was ready again after a loss."""
    recovery_seconds: Amount | None
    """Duration of the last recovery."""
    rebalance_note: str
    """What a faster plan would gain, or the result of the last move; may be empty."""
    verification: Verification | None
    """Whether fetched files match their SHA-256; null if none were fetched."""
    transfers: tuple[TransferDocument, ...]
    prediction: PredictionDocument | None
    """The prediction for the plan in force; null if it was made without measurements."""
    stages: tuple[StageDocument, ...]
    rejections: tuple[Rejection, ...]
    """Units without a stage."""


class DeployDocument(DeploymentDocument, frozen=True, kw_only=True):
    """The output of ``potluck deploy --json`` and ``POST /cluster/deployments``."""

    schema: Literal["potluck.deploy/1"] = "potluck.deploy/1"


class RefusingNode(Document, frozen=True, kw_only=True):
    """A node that must not serve clients of a deployment."""

    node_id: NodeIdText
    reason: NonEmpty


class SlowStage(Document, frozen=True, kw_only=True):
    """A stage whose steps take at least twice as long as before."""

    stage: Count
    node_id: NodeIdText
    slowdown: Amount
    """Ratio of the times."""


# Nodes also send StageTimes and TokenSpeed to each other, in ModelMetrics.


class StageTimes(Document, frozen=True, kw_only=True):
    """Medians of recent steps of a stage within its engine, in seconds; null if unknown."""

    decode_seconds: Amount | None = None
    """A step of one sequence."""
    loaded_seconds: Amount | None = None
    """A step in which the plan's ``num_streams`` decode."""
    prefill_seconds_per_token: Amount | None = None
    """A token of a prompt's longest chunks."""


class MeasuredStage(StageDocument, frozen=True, kw_only=True):
    """A stage of the plan in force, with measurements."""

    measured: StageTimes


class TokenSpeed(Document, frozen=True, kw_only=True):
    """Speeds of recent steps at the coordinator; null if unknown."""

    tokens_per_second: Amount | None = None
    """While one stream decodes."""
    total_tokens_per_second: Amount | None = None
    """Of ``num_streams`` streams together."""
    num_streams: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 2})] | None = None


class SpeedDocument(TokenSpeed, frozen=True, kw_only=True):
    """The speeds, and the wait for a first token; null if unknown."""

    first_token_seconds: Amount | None
    """Mean over ``num_first_tokens`` requests since the coordinator started, from the arrival of
    the request there. Prompts have any length, and time in the queue counts."""
    num_first_tokens: PositiveCount | None


class ClusterDeployment(DeploymentDocument, frozen=True, kw_only=True):
    """A deployment, with measurements and with what nodes say of it."""

    stages: tuple[MeasuredStage, ...]
    measured: SpeedDocument
    slow_stages: tuple[SlowStage, ...]
    refused: tuple[RefusingNode, ...]
    spares: tuple[Spare, ...]


class ClusterDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck ps --json`` and ``GET /cluster``."""

    schema: Literal["potluck.cluster/1"] = "potluck.cluster/1"
    node_id: NodeIdText
    """The node whose view this is."""
    wire_version: PositiveCount
    nodes: tuple[ReadyNode | DrainingNode | SilentNode, ...]
    incompatible: tuple[IncompatibleNode, ...]
    links: tuple[LinkDocument, ...]
    deployments: tuple[ClusterDeployment, ...]
