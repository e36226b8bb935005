"""The HTTP API's interface to its agent.

The agent to which a client is connected is the request's gateway: it holds the connection, the
request and its committed tokens. The HTTP server depends only on this protocol, not on
coordinators, workers or transports. Everything here is used from one event loop and never blocks
it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentState
from potluck.types.documents.cluster import ClusterDocument, StageTimes, TokenSpeed
from potluck.types.drafting import DraftTotals
from potluck.types.engine import NO_EXPERTS, ExpertUse
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.output import OutputFormat
from potluck.types.placement import Prediction
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import Cancel, OnUpdate, SequenceRequest
from potluck.types.states import StateSlots
from potluck.types.text import ChatEncoder, GapEncoder, PairEncoder, Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A deployed model in the list of models. ``reason`` says why it is not ready, or is empty.

    ``created`` is the time of the deployment in seconds since 1970, as in OpenAI's API.
    ``sampling_defaults`` is as in ``ServedModel``. ``ready_in_seconds`` is the time until it is
    expected to be ready; None if it is ready or the time is unknown. ``weights_format`` is the
    format of the model's files, and ``quantization`` that of most of the loaded weights. ``family``
    is the name of the architecture in the files. ``digest`` identifies the model.
    """

    model_id: str
    created: int
    context_tokens: int
    state: DeploymentState
    reason: str = ""
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    ready_in_seconds: float | None = None
    weights_bytes: int = 0
    weights_format: str = ""
    quantization: str = ""
    family: str = ""
    num_parameters: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The tokenizer, templates and formats for converting a client's text to tokens and back.

    ``vocab_size`` is the number of the model's logits, which may exceed the tokenizer's vocabulary.
    ``sampling_defaults`` are values of ``SamplingParams`` that the model's authors recommend.
    ``output_format`` is the format of tool calls and reasoning; None means that all output is text.
    ``architecture`` is the name of the family in the model's files, and ``template`` the source of
    its chat template, which may support tools and reasoning.

    A model without ``has_logits`` does not generate text. Its vectors of ``vector_size`` elements
    are for ``embedding`` or ``rerank``, and the other is None; ``encode_pair`` builds the prompts
    for reranking.

    ``fill_in`` builds the prompts for filling a gap in a text; None if the model does not support
    it.
    """

    model_id: str
    tokenizer: Tokenizer
    encode_chat: ChatEncoder
    vocab_size: int
    context_tokens: int
    sampling_defaults: Mapping[str, float | int]
    output_format: OutputFormat | None = None
    architecture: str = ""
    template: str | None = None
    can_think: bool = False
    has_logits: bool = True
    vector_size: int = 0
    embedding: EmbeddingConfig | None = None
    rerank: RerankConfig | None = None
    encode_pair: PairEncoder | None = None
    fill_in: GapEncoder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """Totals of one stage since it was deployed, and the memory that its process holds now.

    ``cpu_seconds`` is the part of ``compute_seconds`` in which the compute thread was running on a
    core. ``num_dropped_frames`` were late or duplicates. ``slowdown`` is the ratio of the time of
    recent steps to that of earlier steps; None if unknown. ``times`` are recent measurements.
    ``experts`` only counts mapped experts. A member of a group has spent ``exchange_seconds`` of
    ``compute_seconds`` in ``num_exchanges`` exchanges with the other members; both are 0 for a unit
    outside a group.
    """

    stage: int
    node_id: NodeId
    num_steps: int
    compute_seconds: float
    memory_bytes: int
    cpu_seconds: float = 0.0
    num_dropped_frames: int = 0
    slowdown: float | None = None
    times: StageTimes = field(default_factory=StageTimes)
    experts: ExpertUse = NO_EXPERTS
    num_exchanges: int = 0
    exchange_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeMetrics:
    """Totals of the edge to stage ``edge`` (the last edge leads back to the coordinator)."""

    edge: int
    sender: NodeId
    receiver: NodeId
    num_frames: int
    num_bytes: int
    send_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTotals:
    """Totals of the tokens of sequences since their coordinator started.

    ``num_tokens`` were generated, ``num_first_tokens`` of which were the first of their sequences.
    ``first_token_seconds`` is the total time from the arrival of those sequences at the coordinator
    to their first token.
    """

    num_tokens: int = 0
    num_first_tokens: int = 0
    first_token_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """The current state of a deployed model's coordinator.

    ``num_waiting`` sequences do not hold KV-cache blocks yet; ``num_running`` do. ``epoch`` is the
    number of the current epoch. The deployment has recovered ``num_recoveries`` times from losing a
    node or stage, the last time in ``recovery_seconds``; None if it never did. ``num_spares`` is
    the number of spares. The deployment has moved to a better plan ``num_moves`` times, and
    ``last_gain`` is the predicted relative gain of the last move; None if it never moved.
    ``speed`` is recent, and ``prediction`` is that of the current plan; None if it has none.
    ``num_kept_blocks`` of the free blocks are cached for prompts with the same prefix; ``prefix``
    has the statistics of that cache. ``states`` are the slots of a model with state. ``drafts``
    counts the drafts of its sequences, and ``generated`` their tokens.
    """

    model_id: str
    num_waiting: int
    num_running: int
    num_blocks: int
    num_free_blocks: int
    epoch: int = 0
    num_recoveries: int = 0
    recovery_seconds: float | None = None
    num_spares: int = 0
    num_moves: int = 0
    last_gain: float | None = None
    speed: TokenSpeed = field(default_factory=TokenSpeed)
    prediction: Prediction | None = None
    num_kept_blocks: int = 0
    prefix: PrefixTotals = field(default_factory=PrefixTotals)
    drafts: DraftTotals = field(default_factory=DraftTotals)
    states: StateSlots = field(default_factory=StateSlots)
    generated: GenerationTotals = GenerationTotals()
    stages: tuple[StageMetrics, ...] = ()
    edges: tuple[EdgeMetrics, ...] = ()


class Gateway(Protocol):
    """The agent's interface for the HTTP API."""

    def models(self) -> Sequence[ModelStatus]:
        """Return all deployed models, in the order in which they are listed."""
        ...

    async def served_model(self, model_id: str) -> ServedModel:
        """Return a deployed model's tokenizer and templates, loading them if necessary.

        Raise ``ModelNotFoundError`` if no model with that name is deployed, and the errors of
        reading its files.
        """
        ...

    def start(self, model_id: str, request: SequenceRequest, on_update: OnUpdate) -> Cancel:
        """Compute a sequence, up to a token with a finish reason.

        ``on_update`` is called with all tokens of a step at once, and never before this returns. If
        the model is not ready, the sequence waits for as long as the deployment allows. Scored
        tokens of the prompt, if requested, come first. A sequence with ``pooling`` produces a
        single token, which has the vector. A request that requests nothing is refused. When the
        sequence is cancelled, its KV-cache blocks are freed within a step. Errors are passed as
        updates: ``PromptTooLongError``, ``OverloadedError``, or errors such as ``EngineError`` if a
        stage or an edge is lost. Raise ``ModelNotFoundError`` if no model with that name is
        deployed.
        """
        ...

    async def refresh_cluster(self) -> None:
        """Update ``cluster_state``. Like ``refresh_metrics``, it takes at most a few seconds."""
        ...

    async def refresh_metrics(self) -> None:
        """Update ``metrics``."""
        ...

    def cluster_state(self) -> ClusterDocument:
        """Return the cluster as of the last refresh."""
        ...

    def metrics(self) -> Sequence[ModelMetrics]:
        """Return the metrics of each deployed model whose coordinator responds, as of the last
        refresh.
        """
        ...
