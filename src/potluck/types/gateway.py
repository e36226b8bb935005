"""What the HTTP address needs of the agent behind it.

The agent that a client is connected to is the request's gateway: it holds the connection, the
request and its committed tokens. The HTTP side knows only this protocol, nothing of coordinators,
workers or transports. Everything here is used from one event loop and never blocks it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from potluck.types.cluster import NodeId
from potluck.types.expert_use import NO_EXPERTS, ExpertUse
from potluck.types.model import EmbeddingConfig, RerankConfig
from potluck.types.output import OutputFormat
from potluck.types.placement import Prediction
from potluck.types.prefix_cache import PrefixTotals
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceRequest
from potluck.types.states import StateSlots
from potluck.types.text import ChatEncoder, GapEncoder, PairEncoder, Tokenizer


class ModelState(enum.Enum):
    """Whether a deployed model can answer."""

    READY = "ready"
    LOADING = "loading"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """A deployed model as it is listed. ``reason`` says why it is not ready, and is else empty.

    ``created`` is the time of the deployment in seconds since 1970, as OpenAI has it.
    ``sampling_defaults`` as in ``ServedModel``. ``ready_in_seconds`` is when it is expected to be
    ready, where it is not and somebody can tell. ``weights_format`` is that of the model's files,
    ``quantization`` what its weights were loaded as, and ``digest`` the same for the same model.
    """

    model_id: str
    created: int
    context_tokens: int
    state: ModelState
    reason: str = ""
    sampling_defaults: Mapping[str, float | int] = field(default_factory=dict)
    ready_in_seconds: float | None = None
    weights_bytes: int = 0
    weights_format: str = ""
    quantization: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What turns a client's text into the model's tokens and back.

    ``vocab_size`` is the model's (of its logits), which may exceed the tokenizer's.
    ``sampling_defaults`` are parameters of ``SamplingParams`` that the model's makers recommend.
    ``output_format`` says how it writes tool calls and what it thinks; None: everything that
    it writes is text. ``architecture`` is what the model's files call its family, and ``template``
    the source of its chat template, which may tell it of tools, and have it think.

    A model without ``has_logits`` generates nothing. Its vectors, of ``vector_size`` numbers, are
    for ``embedding`` or for ``rerank``, and ``encode_pair`` makes the prompts of the latter; None
    for what they are not for.

    ``fill_in`` makes the prompts of texts that have a gap; None if it was not trained for that.
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
    takes_tools: bool = False
    can_think: bool = False
    has_logits: bool = True
    vector_size: int = 0
    embedding: EmbeddingConfig | None = None
    rerank: RerankConfig | None = None
    encode_pair: PairEncoder | None = None
    fill_in: GapEncoder | None = None


@dataclass(slots=True, kw_only=True)
class LiveSequence:
    """A sequence of a request in progress, with all that is needed to go on from any point.

    Mutable, of the event loop. Whoever calls ``Gateway.start`` appends each new token to
    ``committed``: a sequence is started again from there, and its tokens are the same, because
    draws are keyed by (seed, position). ``num_cached_tokens`` of the prompt were not computed for
    it, because a cache had them; known with the first token.
    """

    model_id: str
    request: SequenceRequest
    committed: list[CommittedToken] = field(default_factory=list)
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What recent steps of a stage took within its engine; None where too few were measured.

    The fields are those of ``StagePrediction``: a step of one sequence, a step as it is when the
    streams that the plan was made for decode, and a token of a prompt's longest chunks.
    """

    decode_seconds: float | None = None
    loaded_seconds: float | None = None
    prefill_seconds_per_token: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSpeed:
    """Tokens per second of a deployment's recent steps, at its coordinator; None if unknown.

    ``tokens_per_second`` while one stream decodes, ``total_tokens_per_second`` of ``num_streams``
    streams together, which are more than one.
    """

    tokens_per_second: float | None = None
    total_tokens_per_second: float | None = None
    num_streams: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """Totals of one stage since it was deployed, and the memory that its process holds now.

    ``cpu_seconds`` are those of ``compute_seconds`` in which the thread that computes had a core.
    ``num_dropped_frames`` came late or twice. ``slowdown`` is how many times as long as before its
    steps take lately; None while that is not known. ``times`` were measured lately. ``experts`` is
    of those that are mapped.
    """

    stage: int
    node_id: NodeId
    num_steps: int
    compute_seconds: float
    memory_bytes: int
    cpu_seconds: float = 0.0
    num_dropped_frames: int = 0
    slowdown: float | None = None
    times: StageTimes = StageTimes()
    experts: ExpertUse = NO_EXPERTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeMetrics:
    """Totals of the edge that leads to stage ``edge`` (the last leads back to the coordinator)."""

    edge: int
    sender: NodeId
    receiver: NodeId
    num_frames: int
    num_bytes: int
    send_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """What the coordinator of a deployed model knows now.

    ``num_waiting`` sequences hold no KV-cache blocks yet; ``num_running`` do. ``epoch`` is the
    number of the one in force. The deployment has recovered ``num_recoveries`` times from the loss
    of something, the last time in ``recovery_seconds``; None if it never had to. ``num_spares``
    stages are held that are not in use. It has moved to a better plan ``num_moves`` times, the last
    time to one that was predicted to be faster by ``last_gain``, as a part; None if it never did.
    ``speed`` was measured lately, ``prediction`` is of the plan in force; None if it was made
    without one. Of the free blocks ``num_kept_blocks`` are kept for prompts that begin alike;
    ``prefix`` says what that has saved. ``states`` are the slots of a model with state.
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
    speed: TokenSpeed = TokenSpeed()
    prediction: Prediction | None = None
    num_kept_blocks: int = 0
    prefix: PrefixTotals = field(default_factory=PrefixTotals)
    states: StateSlots = field(default_factory=StateSlots)
    stages: tuple[StageMetrics, ...] = ()
    edges: tuple[EdgeMetrics, ...] = ()


class Gateway(Protocol):
    """The agent, as the HTTP address sees it."""

    def models(self) -> Sequence[ModelStatus]:
        """Everything that is deployed, in the order in which it shall be listed."""
        ...

    async def served_model(self, model_id: str) -> ServedModel:
        """The texts' side of a deployed model; its tokenizer may be loaded for it now.

        Raises ``ModelNotFoundError`` when nothing of that name is deployed, and whatever makes its
        files unreadable.
        """
        ...

    def start(self, sequence: LiveSequence, on_update: OnUpdate) -> Cancel:
        """Continue ``sequence`` after its committed tokens, to a token with a finish reason.

        ``on_update`` is told the tokens of a step together, and never before this returns. While
        the model is not ready, the sequence waits for as long as the deployment lets requests wait.
        The scored tokens of its prompt come first, if they were asked for. One with ``pooling``
        gives a single token, which has the vector. A request that asks for nothing is not taken.
        Once the sequence is cancelled, its KV-cache blocks are free within a
        step. Errors are told as updates: ``PromptTooLongError``, ``OverloadedError``, or
        ``EngineError`` and its like when a stage or an edge is lost. Raises ``ModelNotFoundError``
        when nothing of that name is deployed.
        """
        ...

    async def refresh_cluster(self) -> None:
        """Bring ``cluster_state`` up to date. Takes seconds at most, as the other one."""
        ...

    async def refresh_metrics(self) -> None:
        """Bring ``metrics`` up to date."""
        ...

    def cluster_state(self) -> Mapping[str, object]:
        """The cluster as ``/cluster`` shows it, of JSON's types only: that of the last refresh."""
        ...

    def metrics(self) -> Sequence[ModelMetrics]:
        """One for each deployed model whose coordinator answers; that of the last refresh."""
        ...
