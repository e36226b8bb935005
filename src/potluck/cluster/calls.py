"""What agents ask of one another: the payloads of control calls, msgpack documents.

Methods: ``node.report`` () → NodeReport. ``model.check`` CheckModel → ModelFingerprint.
``node.speeds`` AskSpeeds → NodeSpeeds. ``link.listen`` ListenForLink → LinkListening or LinkBusy.
``node.host`` () → a document of schema ``potluck.host/1``, in JSON (``agent.hosts``).
``stage.start`` StageSpec → Progress …, then Loaded or Stalled. ``stage.connect`` ConnectStage → ().
``node.clock`` () → Clock. ``node.reach`` Reach → Reached. ``node.multicast`` Multicast → ().
``stage.stop`` StageScope → StageEnds. ``stage.end`` StageScope → StageEnds. ``stage.stats``
StageScope → StageStats. ``stage.check`` StageScope → StageChecks. ``stage.abandon`` AbandonStage →
(). ``stage.release`` ReleaseStages → (). ``deployment.claim`` Claim → ClaimAnswer.
``deployment.take_over`` Named → (). ``deployment.outlook`` AskOutlook → Outlook.
``deployment.rebalance`` AskRebalance → Moving …, then RebalanceReport.
To the coordinator: ``stage.lost`` StageLost → (), ``deployment.remove`` Named → (),
``deployment.vacate`` Vacate → (). To everybody: ``deployment.put`` DeploymentRecord → (). Calls
about sequences are in ``sequence_messages``.
"""

from __future__ import annotations

import enum
from types import UnionType
from typing import Annotated, TypeVar

import msgspec

from potluck.cluster.worker.messages import Connect, Loaded, Progress, Stats
from potluck.errors import CallError
from potluck.placement.rebalancing import DEFAULT_THRESHOLD
from potluck.types.arithmetic import Arithmetic, ArithmeticChoice
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.memory import MemoryPlan
from potluck.types.node import HeldStage
from potluck.types.placement import (
    DEFAULT_NUM_STREAMS,
    LayoutStage,
    Objective,
    Prediction,
    Rebalance,
)
from potluck.types.quantization import Quantization
from potluck.types.ranges import DEFAULT_TARGET_STEP_MS

_T = TypeVar("_T")

MAX_SHAPES = 64
"""Of an ``AskSpeeds``: a model in every quantization and arithmetic."""

NUM_NONCE_BYTES = 16
"""Of a ``Multicast``: too many to be guessed or to occur by chance."""

DEFAULT_RECOVERY_WAIT_SECONDS = 60.0
"""As long as most clients wait, and longer than a model of a few gigabytes takes to load again."""

SAME_VERSION = "install the same version of Potluck on every node"

encode = msgspec.msgpack.Encoder().encode


def decode(payload: bytes, kind: type[_T] | UnionType) -> _T:
    """A payload of the given type, a union for what has several. Raises ``CallError`` for others.

    Whatever another node sends comes through here: what makes no sense fails that call only.
    """
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (ValueError, RecursionError) as error:  # another document, no UTF-8, too deep
        raise CallError(f"a malformed message: {error}", hint=SAME_VERSION) from error


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """What a node's clock shows: ``seconds`` since 1970."""

    seconds: float


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Whether TCP connections to the asker itself can be made, at its control and another port."""

    control_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    edge_port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """Why not, of each; empty if it can."""

    control: str
    edge: str


class Multicast(msgspec.Struct, frozen=True, kw_only=True):
    """Send ``nonce`` to the multicast group of discovery, once."""

    nonce: Annotated[bytes, msgspec.Meta(min_length=NUM_NONCE_BYTES, max_length=NUM_NONCE_BYTES)]


class AskSpeeds(msgspec.Struct, frozen=True, kw_only=True):
    """How fast models of these shapes (``model_shape``) are on a node, and how fast its links.

    With ``may_wait`` the node first asks its workers for their latest step times, and measures its
    links to nodes that have just joined.
    """

    model_shapes: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_SHAPES)]
    may_wait: bool = False


class ListenForLink(msgspec.Struct, frozen=True, kw_only=True):
    """Listen for a connection of the caller that measures the link, with this ``number`` in it.

    The caller may be busy with measurements for ``budget_seconds`` more.
    """

    number: Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
    budget_seconds: float


class LinkListening(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The connection is awaited at this address, by a node that may spend ``budget_seconds``."""

    host: str
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    budget_seconds: float


class LinkBusy(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The node is being measured already, or may not be again for ``wait_seconds``."""

    wait_seconds: float


class CheckModel(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a node can read a model."""

    model: str


class ModelFingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """The same for the same model.

    ``digest`` is of the configuration and of the tensors' names, shapes and types, ``weights`` of a
    sample of their values, ``text`` of what turns texts into tokens. Of a model from the hub
    ``digest`` names the commit, which stands for all.
    """

    digest: str
    weights: str = ""
    text: str = ""

    def difference(self, other: ModelFingerprint) -> str:
        """What makes ``other`` unfit for stages beside this, in a few words; empty if nothing does.

        The text's side does not matter there.
        """
        if self.digest != other.digest:
            return "another configuration, or tensors of other names, shapes or types"
        return "" if self.weights == other.weights else "other weights"


class ConnectStage(msgspec.Struct, frozen=True, kw_only=True):
    """Open the edges of a stage that is loaded. From then on lower epochs are refused."""

    deployment: DeploymentId
    connect: Connect


class StageScope(msgspec.Struct, frozen=True, kw_only=True):
    """A node's stages of a deployment, of this epoch and lower ones.

    ``stage.stop`` ends them. ``stage.end`` closes their edges and keeps what they have loaded.
    """

    deployment: DeploymentId
    epoch: Epoch


class ReleaseStages(msgspec.Struct, frozen=True, kw_only=True):
    """Of the stages that a node holds of a deployment, end all but those in ``keep``.

    It is ignored if a higher epoch than ``epoch`` is in force there.
    """

    deployment: DeploymentId
    epoch: Epoch
    keep: tuple[HeldStage, ...] = ()


class Stalled(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage got no further while it was loaded, and its worker was ended."""

    message: str


class StageEnds(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has seen of the ends of its stages at the epoch that was stopped or has ended.

    ``crashes`` are of workers that crashed by themselves, or met an exception that nobody expected:
    no node that vanished, no edge that was cut, no signal from outside. A line each.
    """

    crashes: tuple[str, ...] = ()


class StageStats(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of a node's stages by index."""

    stages: dict[int, Stats]


class StageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has seen of a stage's worker within a second, or at once if all is well.

    ``answers``: it answered its agent. ``is_stopped``: the kernel says so (a signal, a debugger),
    before and after that second. ``has_progress``: it computed, or has nothing to compute. The
    present step has been computed for ``busy_seconds``, or its result sent for ``sending_seconds``;
    both are 0 between two steps, and for one that does not answer.
    """

    answers: bool
    is_stopped: bool
    has_progress: bool
    busy_seconds: float = 0.0
    sending_seconds: float = 0.0


class StageChecks(msgspec.Struct, frozen=True, kw_only=True):
    """A node's stages by index; one that is not connected, or has ended, is not among them."""

    stages: dict[int, StageCheck]


class AbandonStage(msgspec.Struct, frozen=True, kw_only=True):
    """End the worker of a stage that makes no progress, as one that failed for this reason."""

    deployment: DeploymentId
    epoch: Epoch
    index: Annotated[int, msgspec.Meta(ge=0)]
    message: str


class StageLost(msgspec.Struct, frozen=True, kw_only=True):
    """A worker ended by itself, or only its edges did (``is_held``), and it keeps its weights.

    ``fault``: see ``Failed``; ``has_stalled``: see ``Stalled``.
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


class StageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the plan in force.

    ``read_bytes`` from the model's files and ``load_seconds`` are None until it is loaded.
    """

    node_id: NodeId
    unit_id: UnitId
    start_layer: int
    end_layer: int
    memory: MemoryPlan
    read_bytes: int | None = None
    load_seconds: float | None = None


class RejectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A unit that the plan leaves out."""

    node_id: NodeId
    unit_id: UnitId
    reason: str


class DeploymentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment as every agent knows it. The record with the highest (epoch, revision) counts.

    ``model`` is MODEL, ``model_id`` what clients call it, ``created`` seconds since 1970.
    ``quantization`` is in force; with ``may_quantize`` every plan takes the most precise that fits.
    Weights that ``is_mapped`` speaks of stay in a file on every node. Every stage keeps at most
    ``cache_disk_bytes`` of cache blocks on disk, and has ``num_states`` state slots (0 for a model
    without state). ``arithmetic`` is that of every stage on a CPU;
    None until the first plan has fixed a fast one, which later plans keep.
    ``arithmetic_note`` says in a line what it gains or costs; it may be empty. ``fingerprint`` is
    that of the model at the node that it was deployed from; None if nobody looked. ``done_bytes``
    and ``total_bytes`` are the weights loaded so far. ``remarks`` say which weights get another
    format than ``quantization`` has for them. ``sampling_defaults`` are the model's. Requests wait
    ``recovery_wait_seconds`` for stages before they fail. ``num_spares`` further nodes hold each
    stage. ``holders`` are the nodes that knew of the deployment when its epoch was claimed; with
    ``has_quorum`` enough of them agreed to it (see ``Claim``), and without it every record that has
    one counts more. ``num_recoveries`` counts how often it was ready again after a loss, the last
    time ``recovery_seconds`` after it. ``ready_in_seconds`` is what its coordinator expected when
    it published this, where it is not ready and that is known. ``successor`` is the node that the
    coordinator, which is about to leave, wants to be followed by. Plans are best at the
    ``objective``, with ``num_streams``, or are the ``layout`` if there is one; ``prediction`` is of
    the plan in force, None if it was made without one. ``rebalance`` says whether it moves to a
    better plan, which has to gain ``rebalance_threshold``, and ``rebalance_note`` in a line what
    such a plan would gain, or why the last one was left. With ``prefix_cache`` what equal prefixes
    of prompts leave in the cache is computed once. Prompts are cut so that the time between the
    tokens of others is about ``target_step_ms`` milliseconds. Calls of tools are read in the format
    ``tool_format``; None: in that of the chat template.
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
    layout: tuple[LayoutStage, ...] = ()
    rebalance: Rebalance = Rebalance.AUTO
    rebalance_threshold: float = DEFAULT_THRESHOLD
    prediction: Prediction | None = None
    rebalance_note: str = ""
    prefix_cache: bool = True
    tool_format: str | None = None
    target_step_ms: float = DEFAULT_TARGET_STEP_MS

    def supersedes(self, other: DeploymentRecord) -> bool:
        """Whether this is the later word on the same deployment."""
        return self._rank > other._rank

    @property
    def _rank(self) -> tuple[bool, Epoch, int]:
        return (self.has_quorum, self.epoch, self.revision)


class Deploy(msgspec.Struct, frozen=True, kw_only=True):
    """Deploy a model, coordinated by the agent that is asked.

    ``quantization`` None takes the most precise one that fits. ``num_states`` are asked for of a
    model with state, and refused of another; ``default_states`` are what the former gets otherwise.
    """

    model: str
    model_id: str | None = None
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
    rebalance: Rebalance = Rebalance.AUTO
    rebalance_threshold: float = DEFAULT_THRESHOLD
    layout: tuple[LayoutStage, ...] = ()
    prefix_cache: bool = True
    tool_format: str | None = None
    target_step_ms: float = DEFAULT_TARGET_STEP_MS


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """Ask a node to agree that ``epoch`` is the deployment's next one, and to promise it.

    A node agrees unless it has seen or promised another epoch as high, knows of the deployment's
    removal or of a later record, or sees another node that coordinates the deployment and has not
    named the claimant its successor.
    ``known`` is the epoch of the record that the claimant goes by.
    """

    deployment: DeploymentId
    epoch: Epoch
    known: Epoch


class ClaimAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node agrees, and if not why. ``highest`` is the highest epoch that it has seen or
    promised, and ``record`` its own record of the deployment if that supersedes the claimant's.
    """

    is_granted: bool
    reason: str = ""
    highest: Epoch | None = None
    record: DeploymentRecord | None = None


class Standing(enum.Enum):
    """What a node would do about a deployment whose coordinator is lost."""

    CANDIDATE = "candidate"
    AT_WORK = "at work"
    UNABLE = "unable"


class AskOutlook(msgspec.Struct, frozen=True, kw_only=True):
    """Ask what a node makes of a deployment whose coordinator cannot be seen from everywhere.

    ``known`` is the epoch of the record that the asking node goes by.
    """

    deployment: DeploymentId
    known: Epoch


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node sees the coordinator of the epoch that the question named, and what it would
    do if nobody did. ``record`` is its own record if that is of another epoch.
    """

    sees_coordinator: bool
    standing: Standing
    record: DeploymentRecord | None = None


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment by its id."""

    deployment: DeploymentId


class Vacate(msgspec.Struct, frozen=True, kw_only=True):
    """Go on without a node that is about to leave."""

    deployment: DeploymentId
    node_id: NodeId


class AskRebalance(msgspec.Struct, frozen=True, kw_only=True):
    """Have a deployment move to the best plan, or with ``is_dry_run`` only say what that gains."""

    deployment: DeploymentId
    is_dry_run: bool


class Moving(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The move goes on."""


class MoveOutcome(enum.Enum):
    """What came of a better plan."""

    STAYS = "stays"
    POSSIBLE = "possible"
    MOVED = "moved"
    FAILED = "failed"


class RebalanceReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The plan in force of a deployment beside the best one.

    ``reason`` says why it stays or failed, or what the deployment would do by itself. ``stages``
    are those that served before, predicted by present figures to be ``in_force``. Where there is a
    better plan: ``new_stages`` are its stages, ``gain`` is what it gains in tokens per second
    (``rate`` becomes ``new_rate``) as a part, ``net_gain`` what is left of it after the cost.
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
StartEvent = Progress | Loaded | Stalled
RebalanceAnswer = Moving | RebalanceReport
