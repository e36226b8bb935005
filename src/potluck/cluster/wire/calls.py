"""The requests and answers of the methods between nodes (``potluck.cluster.wire.methods``)."""

from __future__ import annotations

import enum
import zlib
from types import UnionType
from typing import Annotated, TypeVar

import msgspec

from potluck.cluster.network.trust.removals import Removal
from potluck.cluster.wire.worker_messages import Connect, Loaded, Located, Progress, Stats
from potluck.errors import CallError
from potluck.types.cluster import SAME_VERSION, DeploymentId, Epoch, NodeId, UnitId
from potluck.types.content import (
    ChunkRuns,
    ChunkSource,
    FileContent,
    Holdings,
    HubOrigin,
    Manifest,
    ReadingOrder,
)
from potluck.types.deployment import (
    DeploymentRecord,
    ModelFingerprint,
    RebalanceReport,
)
from potluck.types.held_stage import HeldStage
from potluck.types.node import NodeReport
from potluck.types.speed import NodeSpeeds

_T = TypeVar("_T")

MAX_SHAPES = 64
"""Per ``AskSpeeds``: a model in every quantization and arithmetic."""

NUM_NONCE_BYTES = 16
"""The length of the nonce of a ``Multicast``: too long to be guessed or to recur by chance."""

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


class SurveyNode(msgspec.Struct, frozen=True, kw_only=True):
    """Ask for all that a plan of ``model``, with these shapes (``model_shape``), needs to know."""

    model: str
    model_shapes: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SHAPES)]


class NodeSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """A node's report, whether it has the model, and its measurements so far.

    ``check`` is None if it takes longer, as it does if files have to be read or fetched first, or
    if it fails unexpectedly.
    """

    report: NodeReport
    check: ModelCheck | None
    speeds: NodeSpeeds


class ListenForLink(msgspec.Struct, frozen=True, kw_only=True):
    """Listen for a connection from the caller that measures the link and carries this ``number``.

    The caller may be busy with measurements for ``budget_seconds`` more. With ``is_check`` it only
    checks whether it can connect, and measures nothing.
    """

    number: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    budget_seconds: float
    is_check: bool = False


class LinkListening(Located, msgspec.Struct, frozen=True, kw_only=True, tag=True):
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
    """The files in question that a node holds (see ``Holdings``).

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
        return len(self.digests) == self.content.digests_bytes


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
    exception; not for a lost node, a closed edge, or a signal from outside. ``out`` are the units
    of the node that are out by now, with the reasons.
    """

    crashes: tuple[str, ...] = ()
    out: dict[UnitId, str] = {}


class StageStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a node's stages by index."""

    stages: dict[int, Stats]


class StageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Observations of a stage's worker by its node within a second, or immediately if all is well.

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


class UnitChange(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of the caller is out from now on, for a ``reason``, or used again if that is empty.

    ``node_name`` is the caller's host name.
    """

    node_name: str
    unit_id: UnitId
    reason: str


class RemovalList(msgspec.Struct, frozen=True, kw_only=True):
    """All removals that a node knows, and whether it could sign more with the cluster's secret."""

    removals: tuple[Removal, ...]
    holds_secret: bool = True


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


LinkAnswer = LinkListening | LinkBusy
ManifestEvent = Hashing | ModelFound
StartEvent = Progress | Loaded | Stalled
RebalanceAnswer = Moving | RebalanceReport
