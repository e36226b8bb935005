"""What agents ask of one another: the payloads of control calls, msgpack documents.

Methods: ``node.report`` () → NodeReport. ``model.check`` CheckModel → ModelCheck. ``node.speeds``
AskSpeeds → NodeSpeeds. ``link.listen`` ListenForLink → LinkListening or LinkBusy. ``link.check``
CheckLinks → Unreachable. ``node.host`` () → a document of schema ``potluck.host/1``, in JSON
(``agent.hosts``). ``stage.start`` StageSpec → Progress …, then Loaded or Stalled. ``stage.connect``
ConnectStage → (). ``node.clock`` () → Clock. ``node.reach`` CheckConnection → ConnectionCheck.
``node.multicast`` Multicast → (). ``stage.stop`` StageScope → StageEnds. ``stage.end`` StageScope →
StageEnds. ``stage.stats`` StageScope → StageStats. ``stage.check`` StageScope → StageChecks.
``stage.abandon`` AbandonStage → (). ``stage.release`` ReleaseStages → (). ``weights.manifest``
CheckModel → Hashing …, then ModelFound. ``weights.holdings`` AskHoldings → NodeHoldings.
``weights.prepare`` PrepareWeights → (). ``weights.end`` DeploymentReference → ().
``weights.transfer`` DeploymentReference → Transfer or nil. ``weights.digests`` NamedFile → the
digest of every chunk one after the other, empty if they are not certain. ``weights.hash`` HashRange
→ HashState. ``weights.verified`` ChunkDigests → (). ``weights.discard`` DiscardFile → ().
``weights.dial`` DialBack → (). ``deployment.claim`` Claim → ClaimAnswer. ``deployment.take_over``
DeploymentReference → (). ``deployment.coordinator_view`` AskCoordinatorView → CoordinatorView.
``deployment.rebalance`` AskRebalance → Moving …, then RebalanceReport. To the coordinator:
``stage.lost`` StageLost → (), ``deployment.remove`` DeploymentReference → (), ``deployment.retire``
RetireDeployment → (), ``deployment.continue_without`` ContinueWithout → (). To everybody:
``deployment.put`` DeploymentRecord (``pack_record``) → (). Calls about sequences are in
``sequence_messages``.
"""

from __future__ import annotations

import enum
import zlib
from types import UnionType
from typing import Annotated, TypeVar

import msgspec

from potluck.cluster.worker.messages import Connect, Loaded, Progress, Stats, Transfer
from potluck.errors import CallError
from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import (
    DEFAULT_DRAFT,
    DEFAULT_NUM_STREAMS,
    DEFAULT_REBALANCE_THRESHOLD,
    ArithmeticChoice,
    Objective,
    Rebalance,
)
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.content import (
    DIGEST_BYTES,
    ChunkRuns,
    ChunkSource,
    FileContent,
    Holdings,
    HubOrigin,
    Manifest,
    ReadingOrder,
)
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.placement import LayoutStage, Prediction
from potluck.types.program import GroupPart, Shard, group_ranges
from potluck.types.quantization import Quantization
from potluck.types.ranges import DEFAULT_RECOVERY_WAIT_SECONDS, DEFAULT_TARGET_STEP_MS

_T = TypeVar("_T")

MAX_SHAPES = 64
"""Per ``AskSpeeds``: a model in every quantization and arithmetic."""

NUM_NONCE_BYTES = 16
"""Of a ``Multicast``: too many to be guessed or to occur by chance."""

SAME_VERSION = "install the same version of Potluck on every node"

_MOST_RECORD_BYTES = 2**24
"""The limit for a record before compression, several times the size of any: a malformed message
must not fill the memory."""

encode = msgspec.msgpack.Encoder().encode


def decode(payload: bytes, kind: type[_T] | UnionType) -> _T:
    """Return a payload as the given type, or a union of types. Raise ``CallError`` for others.

    Everything that another node sends is decoded here: a malformed message only fails its call.
    """
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, RecursionError) as error:  # not msgpack, invalid UTF-8, too deep
        raise CallError(f"a malformed message: {error}", hint=SAME_VERSION) from error


def pack_record(record: DeploymentRecord) -> bytes:
    """Return the payload of ``deployment.put``: compressed to about a quarter.

    A record is sent to all nodes at the same time. With 14 stages it has 11 KB, and so many of them
    would fill the queue of a slow link.
    """
    return zlib.compress(encode(record), 1)


def unpack_record(payload: bytes) -> DeploymentRecord:
    """Return the record in a payload. Raise ``CallError`` if there is none."""
    unpacking = zlib.decompressobj()
    try:
        packed = unpacking.decompress(payload, _MOST_RECORD_BYTES)
    except zlib.error as error:
        raise CallError(f"a malformed message: {error}", hint=SAME_VERSION) from error
    return decode(packed, DeploymentRecord)


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a node's clock: ``seconds`` since 1970."""

    seconds: float


class CheckConnection(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether a TCP connection to the asker itself can be made, at its port."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class ConnectionCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Why the connection failed; empty if it succeeded."""

    problem: str


class Multicast(msgspec.Struct, frozen=True, kw_only=True):
    """Send ``nonce`` to the multicast group of discovery, once."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NUM_NONCE_BYTES, max_length=NUM_NONCE_BYTES)]


class AskSpeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Ask how fast models of these shapes (``model_shape``) are on a node, and how fast its links
    are.

    With ``may_wait`` the node first asks its workers for their latest step times, and measures its
    links to nodes that have just joined.
    """

    model_shapes: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SHAPES)]
    may_wait: bool = False


class ListenForLink(msgspec.Struct, frozen=True, kw_only=True):
    """Listen for a connection from the caller that measures the link and carries this ``number``.

    The caller may be busy with measurements for ``budget_seconds`` more. With ``is_check`` it only
    checks whether it can connect, and measures nothing.
    """

    number: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    budget_seconds: float
    is_check: bool = False


class LinkListening(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The node waits for the connection at this address, and may spend ``budget_seconds``."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    budget_seconds: float
    name: str = ""


class LinkBusy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The node is already being measured, or may not be measured again for ``wait_seconds``."""

    wait_seconds: float


class CheckLinks(msgspec.Struct, frozen=True, kw_only=True):
    """Try to connect to these nodes now."""

    nodes: tuple[NodeId, ...]


class Unreachable(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes that a node could not connect to."""

    nodes: tuple[NodeId, ...]


class CheckModel(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether a node can read a model."""

    model: str


class ModelFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Equal for equal models.

    ``digest`` covers the configuration and the tensors' names, shapes and types, ``weights`` a
    sample of their values, ``text`` what turns text into tokens. For a model from the hub,
    ``digest`` names the commit, which covers everything.
    """

    digest: str
    weights: str = ""
    text: str = ""

    def difference(self, other: ModelFingerprint) -> str:
        """Return why ``other`` cannot have stages of the same deployment, as text; empty if it can.

        The text's digest does not matter for stages.
        """
        if self.digest != other.digest:
            return "a different configuration, or tensors with different names, shapes or types"
        return "" if self.weights == other.weights else "different weights"


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node has a model, or can get it.

    ``fingerprint`` is that of the node's own files of it; None if it has no readable ones, and then
    ``problem`` says why. ``cannot_get`` is why it cannot get files by content either; empty if it
    can.
    """

    fingerprint: ModelFingerprint | None
    problem: str = ""
    cannot_get: str = ""


class Hashing(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How much of a model's files has been read to determine their hashes."""

    done_bytes: int
    total_bytes: int


class ModelFound(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The files of a model that a node has at its path, by content."""

    manifest: Manifest
    fingerprint: ModelFingerprint


class AskHoldings(msgspec.Struct, frozen=True, kw_only=True):
    """Ask what a node has of some files, and whether it may fetch ``hub_file`` from the ``hub``.

    The latter may take some seconds; None skips it.
    """

    contents: tuple[FileContent, ...]
    hub: HubOrigin | None = None
    hub_file: str = ""


class NodeHoldings(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has of the files in question (see ``Holdings``).

    Other nodes get them at ``host`` and ``port``.
    """

    held: dict[str, ChunkRuns]
    verified: frozenset[str]
    reaches_hub: bool
    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]

    def of(self, node: NodeId) -> Holdings:
        """Return the same as the holdings of a node."""
        return Holdings(
            node=node, held=self.held, verified=self.verified, reaches_hub=self.reaches_hub
        )


class PrepareWeights(msgspec.Struct, frozen=True, kw_only=True):
    """The sources from which a node gets what it, or other nodes, need of a model's files.

    This replaces earlier sources for the ``deployment``. ``verified_at`` gives, by SHA-256, a node
    that has the verified digest of every chunk. A node that may store files fetches what its stages
    read, in the order ``ahead``, without waiting until their workers have started.
    """

    deployment: DeploymentId
    manifest: Manifest
    sources: tuple[ChunkSource, ...]
    peers: dict[NodeId, tuple[str, int]]
    verified_at: dict[str, NodeId] = {}
    ahead: ReadingOrder = ()


class NamedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file by its SHA-256."""

    sha256: str


class ChunkDigests(msgspec.Struct, frozen=True, kw_only=True):
    """The SHA-256 of each chunk of a file, one after the other."""

    content: FileContent
    digests: bytes

    @property
    def are_whole(self) -> bool:
        """Return whether there is one for each chunk."""
        return len(self.digests) == self.content.num_chunks * DIGEST_BYTES


class HashRange(msgspec.Struct, frozen=True, kw_only=True):
    """Continue the SHA-256 of a file with its chunks ``[first, end)``, from an exported state."""

    sha256: str
    first: Annotated[int, msgspec.Meta(ge=0)]
    end: Annotated[int, msgspec.Meta(ge=0)]
    state: bytes


class HashState(msgspec.Struct, frozen=True, kw_only=True):
    """An exported SHA-256 state, and the digests of the chunks that were hashed."""

    state: bytes
    digests: bytes


class DiscardFile(msgspec.Struct, frozen=True, kw_only=True):
    """Remove what was fetched of a file, for this ``reason``."""

    sha256: str
    reason: str


class DialBack(msgspec.Struct, frozen=True, kw_only=True):
    """Connect to the caller, which cannot connect to the node asked, and send it model files.

    The caller's transfer process listens at ``host``, an IP address, and ``port``.
    """

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class ConnectStage(msgspec.Struct, frozen=True, kw_only=True):
    """Open the edges of a loaded stage. From then on lower epochs are refused."""

    deployment: DeploymentId
    connect: Connect


class StageScope(msgspec.Struct, frozen=True, kw_only=True):
    """A node's stages of a deployment, of this epoch and lower ones.

    ``stage.stop`` ends them. ``stage.end`` closes their edges and keeps what they have loaded.
    """

    deployment: DeploymentId
    epoch: Epoch


class ReleaseStages(msgspec.Struct, frozen=True, kw_only=True):
    """End all of a node's stages of a deployment except those in ``keep``.

    It is ignored if a higher epoch than ``epoch`` is in force there.
    """

    deployment: DeploymentId
    epoch: Epoch
    keep: tuple[HeldStage, ...] = ()


class Stalled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage made no progress while loading, and its worker was killed."""

    message: str


class StageEnds(msgspec.Struct, frozen=True, kw_only=True):
    """How a node's stages ended at the epoch that was stopped or has ended.

    ``crashes`` has one line for each worker that crashed by itself, or failed with an unexpected
    exception; not for a lost node, a closed edge, or a signal from outside.
    """

    crashes: tuple[str, ...] = ()


class StageStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a node's stages by index."""

    stages: dict[int, Stats]


class StageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has observed of a stage's worker within a second, or immediately if all is well.

    ``answers``: it answered its agent. ``is_stopped``: the kernel says so (a signal, a debugger),
    before and after that second. ``has_progress``: it computed, or has nothing to compute. The
    current step has been computing for ``busy_seconds``, or its result has been sending for
    ``sending_seconds``; both are 0 between two steps, and for a worker that does not answer.
    """

    answers: bool
    is_stopped: bool
    has_progress: bool
    busy_seconds: float = 0.0
    sending_seconds: float = 0.0


class StageChecks(msgspec.Struct, frozen=True, kw_only=True):
    """A node's stages by index, without those that are not connected or have ended."""

    stages: dict[int, StageCheck]


class AbandonStage(msgspec.Struct, frozen=True, kw_only=True):
    """Kill the worker of a stage that makes no progress, and treat it as failed for this reason."""

    deployment: DeploymentId
    epoch: Epoch
    index: Annotated[int, msgspec.Meta(ge=0)]
    message: str


class StageLost(msgspec.Struct, frozen=True, kw_only=True):
    """A worker ended by itself, or only its edges did and it keeps its weights (``is_held``).

    For ``fault`` see ``Failed``; for ``has_stalled`` see ``Stalled``.
    """

    deployment: DeploymentId
    epoch: Epoch
    index: Annotated[int, msgspec.Meta(ge=0)]
    node_id: NodeId
    message: str
    fault: str = ""
    has_stalled: bool = False
    is_held: bool = False


class DeploymentState(enum.Enum):
    """Whether a deployment can serve."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    REMOVED = "removed"


class LoadingStage(msgspec.Struct, frozen=True, kw_only=True):
    """How far a stage is: ``doing`` is ``fetching`` (from the hub), ``loading`` or ``warming up``.

    ``total_bytes`` is 0 until it is known.
    """

    doing: str
    done_bytes: int
    total_bytes: int


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the plan in force, or the part of a group member that holds one.

    ``read_bytes`` from the model's files and ``load_seconds`` are None until it is loaded;
    ``progress`` is None before it begins to load, and afterwards.
    """

    node_id: NodeId
    unit_id: UnitId
    start_layer: int
    end_layer: int
    memory: MemoryPlan
    read_bytes: int | None = None
    load_seconds: float | None = None
    part: GroupPart | None = None
    progress: LoadingStage | None = None


class RejectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that the plan leaves out."""

    node_id: NodeId
    unit_id: UnitId
    reason: str


class TransferRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a node in getting the files that its stages need."""

    node_id: NodeId
    transfer: Transfer


class Verification(enum.Enum):
    """Whether files were found to match their SHA-256.

    ``PARTLY``: no node needs all chunks of a file, so none has read all of it; the chunks in use
    are as the hub, or the node that had them, sent them.
    """

    PENDING = "pending"
    VERIFIED = "verified"
    PARTLY = "partly"


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The deployment of a small model that drafts for another one.

    If it ``is_own``, it was deployed for that purpose, and is removed together with the other.
    """

    deployment: DeploymentId
    context_tokens: int
    is_own: bool


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Figures for lists of models. ``stored_format`` is the format of most of the weights.

    ``files`` is the format of the files: ``safetensors`` or ``gguf``. Without an argument, nothing
    is known.
    """

    family: str = ""
    num_parameters: int = 0
    stored_format: str = ""
    files: str = ""


class DeploymentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment as every agent knows it. The record with the highest (epoch, revision) counts.

    ``model`` is MODEL, ``model_id`` what clients call it, ``created`` seconds since 1970.
    ``quantization`` is in force; with ``may_quantize`` every plan uses the most precise that fits.
    If ``is_mapped``, weights stay in a file on every node. Every stage stores at most
    ``cache_disk_bytes`` of cache blocks on disk, and has ``num_states`` state slots (0 for a model
    without state). ``arithmetic`` is that of every stage on a CPU; None until the first plan has
    chosen a fast one, which later plans keep. ``arithmetic_note`` is a line about what it gains or
    costs, and may be empty. ``fingerprint`` is that of the model at the node from which it was
    deployed; None if it was not computed. ``done_bytes`` and ``total_bytes`` are the weights loaded
    so far. ``remarks`` say which weights have a format other than that of ``quantization``.
    ``sampling_defaults`` and ``facts`` are the model's. Requests wait ``recovery_wait_seconds`` for
    stages before they fail. ``num_spares`` additional nodes hold each stage. ``holders`` are the
    nodes that knew of the deployment when its epoch was claimed; with ``has_quorum`` enough of them
    agreed to it (see ``Claim``), and without it, any record that has one takes precedence.
    ``num_recoveries`` counts how often it became ready again after a loss, the last time after
    ``recovery_seconds``. ``ready_in_seconds`` is its coordinator's estimate when it published this,
    if it is not ready and that is known. ``successor`` is the node that a leaving coordinator has
    chosen to follow it. Plans optimize the ``objective``, with ``num_streams`` and
    ``tensor_parallel`` as in ``Preferences``, or are the ``layout`` if there is one; ``prediction``
    is for the plan in force, None if it was made without one. ``rebalance`` says whether it moves
    to a better plan, which has to gain ``rebalance_threshold``, and ``rebalance_note``, in one
    line, what such a plan would gain, or why the last one was abandoned. With ``prefix_cache``,
    common prefixes of prompts are computed once. Prompts are split so that the time between the
    tokens of others is about ``target_step_ms`` milliseconds. Tool calls are parsed in the format
    ``tool_format``; None: in that of the chat template. Drafts come from ``draft`` (see
    ``potluck.drafting.sources``); if that is a model, ``small`` is its deployment.

    Nodes read ``model`` at their own path if there is no ``manifest``, or if they are among
    ``own_files``; the others get the files of the ``manifest`` by content, and keep them in their
    stores with ``keep_weights``. ``transfers`` are the progress of that, ``verification`` what is
    known of the integrity of the files (None if nothing was fetched).

    It has moved to a better plan ``num_moves`` times, the last time to one that was predicted to be
    faster by the fraction ``last_gain``.
    """

    deployment: DeploymentId
    epoch: Epoch
    revision: int
    model: str
    model_id: str
    created: int
    context_tokens: int
    cache_tokens: int
    num_layers: int
    quantization: Quantization
    may_quantize: bool
    is_mapped: bool
    state: DeploymentState
    cache_disk_bytes: int = 0
    num_states: int = 0
    arithmetic: Arithmetic | None = Arithmetic.EXACT
    arithmetic_note: str = ""
    reason: str = ""
    stages: tuple[StageRecord, ...] = ()
    rejections: tuple[RejectionRecord, ...] = ()
    done_bytes: int = 0
    total_bytes: int = 0
    fingerprint: ModelFingerprint | None = None
    remarks: tuple[str, ...] = ()
    sampling_defaults: dict[str, float | int] = {}
    facts: ModelFacts = ModelFacts()
    recovery_wait_seconds: float = DEFAULT_RECOVERY_WAIT_SECONDS
    num_spares: int = 0
    holders: tuple[NodeId, ...] = ()
    has_quorum: bool = True
    num_recoveries: int = 0
    recovery_seconds: float | None = None
    ready_in_seconds: float | None = None
    successor: NodeId | None = None
    objective: Objective = Objective.LATENCY
    num_streams: int = DEFAULT_NUM_STREAMS
    tensor_parallel: int | None = None
    layout: tuple[LayoutStage, ...] = ()
    rebalance: Rebalance = Rebalance.AUTO
    rebalance_threshold: float = DEFAULT_REBALANCE_THRESHOLD
    prediction: Prediction | None = None
    rebalance_note: str = ""
    prefix_cache: bool = True
    tool_format: str | None = None
    target_step_ms: float = DEFAULT_TARGET_STEP_MS
    draft: str = DEFAULT_DRAFT
    small: DraftRecord | None = None
    manifest: Manifest | None = None
    own_files: tuple[NodeId, ...] = ()
    keep_weights: bool = True
    transfers: tuple[TransferRecord, ...] = ()
    verification: Verification | None = None
    num_moves: int = 0
    last_gain: float | None = None

    def manifest_for(self, node: NodeId) -> Manifest | None:
        """Return the files that a node gets by content; None if it reads its own."""
        return None if node in self.own_files else self.manifest

    @property
    def groups(self) -> tuple[range, ...]:
        """Return, for each stage of the pipeline, the indices of the stages that together hold it.

        There is one, or one for each member of a group, the leader first.
        """
        return group_ranges(stage.part for stage in self.stages)

    def shard(self, index: int) -> Shard:
        """Return the shard of a stage."""
        stage, groups = self.stages[index], self.groups
        return Shard(
            start_layer=stage.start_layer,
            end_layer=stage.end_layer,
            num_layers=self.num_layers,
            has_embedding=index in groups[0],
            has_head=index in groups[-1],
            part=stage.part,
        )

    def supersedes(self, other: DeploymentRecord) -> bool:
        """Return whether this record replaces another one of the same deployment."""
        return self._rank > other._rank

    @property
    def _rank(self) -> tuple[bool, Epoch, int]:
        return (self.has_quorum, self.epoch, self.revision)


class UnitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of the caller is out from now on, for a ``reason``, or used again if that is empty.

    ``node_name`` is the caller's host name.
    """

    node_name: str
    unit_id: UnitId
    reason: str


class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    """Deploy a model, coordinated by the agent that receives this.

    ``quantization`` None uses the most precise one that fits. ``num_states`` is the requested
    number for a model with state, and refused for others; ``default_states`` is the default for the
    former. ``tensor_parallel`` is that of ``Preferences``. Without ``keep_weights`` no node keeps
    files that it gets by content.

    If a deployment has the name ``model_id``, a number is appended to it, unless ``is_named``: then
    it is refused. With ``replaces``, the new deployment takes over the name when it is ready.
    """

    model: str
    model_id: str | None = None
    is_named: bool = False
    replaces: bool = False
    context_tokens: int | None = None
    cache_tokens: int | None = None
    num_states: int | None = None
    default_states: int | None = None
    quantization: Quantization | None = Quantization.NONE
    is_mapped: bool = False
    cache_disk_bytes: int = 0
    arithmetic: ArithmeticChoice = ArithmeticChoice.EXACT
    recovery_wait_seconds: float = DEFAULT_RECOVERY_WAIT_SECONDS
    num_spares: int = 0
    objective: Objective = Objective.LATENCY
    num_streams: int = DEFAULT_NUM_STREAMS
    tensor_parallel: int | None = None
    rebalance: Rebalance = Rebalance.AUTO
    rebalance_threshold: float = DEFAULT_REBALANCE_THRESHOLD
    layout: tuple[LayoutStage, ...] = ()
    prefix_cache: bool = True
    tool_format: str | None = None
    target_step_ms: float = DEFAULT_TARGET_STEP_MS
    draft: str = DEFAULT_DRAFT
    keep_weights: bool = True


class AskMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a coordinator for the metrics of its deployment. They may be ``max_age_seconds`` old."""

    deployment: DeploymentId
    max_age_seconds: float = 0.0


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a node to agree that ``epoch`` is the deployment's next one, and to promise it.

    A node agrees unless it has seen or promised another epoch as high, knows of the deployment's
    removal or of a later record, or is connected to another node that coordinates the deployment
    and has not named the claimant its successor. ``known`` is the epoch of the claimant's record.
    """

    deployment: DeploymentId
    epoch: Epoch
    known: Epoch


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node agrees, and if not, why.

    ``highest`` is the highest epoch that it has seen or promised, and ``record`` its own record of
    the deployment if that supersedes the claimant's.
    """

    is_granted: bool
    reason: str = ""
    highest: Epoch | None = None
    record: DeploymentRecord | None = None


class TakeoverReadiness(enum.Enum):
    """Whether a node could take over a deployment whose coordinator is lost."""

    CANDIDATE = "candidate"
    AT_WORK = "at work"
    UNABLE = "unable"


class AskCoordinatorView(msgspec.Struct, frozen=True, kw_only=True):
    """Ask how a node sees a deployment whose coordinator is not reachable from everywhere.

    ``known`` is the epoch of the asking node's record.
    """

    deployment: DeploymentId
    known: Epoch


class CoordinatorView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node is connected to the coordinator of the epoch in question, and what it would
    do if no node were.

    ``record`` is its own record if that is of another epoch.
    """

    sees_coordinator: bool
    readiness: TakeoverReadiness
    record: DeploymentRecord | None = None


class DeploymentReference(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment by its id."""

    deployment: DeploymentId


class RetireDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """Give a deployment another name, let its requests finish, and remove it."""

    deployment: DeploymentId
    name: str


class ContinueWithout(msgspec.Struct, frozen=True, kw_only=True):
    """Continue without a node that is about to leave."""

    deployment: DeploymentId
    node_id: NodeId


class AskRebalance(msgspec.Struct, frozen=True, kw_only=True):
    """Make a deployment move to the best plan, or with ``is_dry_run`` only report the gain."""

    deployment: DeploymentId
    is_dry_run: bool


class Moving(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The move is still in progress."""


class MoveOutcome(enum.Enum):
    """The outcome of a request to move."""

    STAYS = "stays"
    POSSIBLE = "possible"
    MOVED = "moved"
    FAILED = "failed"


class RebalanceReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plan in force of a deployment compared with the best one.

    ``reason`` says why it stays or failed, or what the deployment would do automatically.
    ``stages`` are those that served before, predicted from current figures to be ``in_force``. If
    there is a better plan: ``new_stages`` are its stages, ``gain`` is the relative gain in tokens
    per second (``rate`` becomes ``new_rate``), ``net_gain`` what is left of it after the cost.
    ``load_bytes`` are loaded in ``load_seconds``, and no sequence gets a token for
    ``pause_seconds``; with ``needs_room`` that includes the loading.
    """

    model_id: str
    outcome: MoveOutcome
    reason: str
    stages: tuple[StageRecord, ...]
    in_force: Prediction | None = None
    new_stages: tuple[StageRecord, ...] = ()
    predicted: Prediction | None = None
    gain: float = 0.0
    net_gain: float = 0.0
    rate: float = 0.0
    new_rate: float = 0.0
    load_bytes: int = 0
    load_seconds: float = 0.0
    pause_seconds: float = 0.0
    needs_room: bool = False


LinkAnswer = LinkListening | LinkBusy
ManifestEvent = Hashing | ModelFound
StartEvent = Progress | Loaded | Stalled
RebalanceAnswer = Moving | RebalanceReport
