"""A deployment: what was asked for, and what is."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec
from msgspec.structs import replace

from potluck.types.arithmetic import Arithmetic
from potluck.types.choices import Quantization
from potluck.types.cluster import DeploymentId, Epoch, NodeId, OnUnit, UnitId
from potluck.types.content import Manifest, Transfer
from potluck.types.deployment_spec import DeploymentSpec
from potluck.types.document import Count
from potluck.types.groups import GroupPart, group_ranges
from potluck.types.memory import MemoryPlan
from potluck.types.placement import Prediction, Rejection
from potluck.types.program import Shard


class Deploy(DeploymentSpec, frozen=True, kw_only=True):
    """Deploy a model, coordinated by the agent that receives this.

    ``num_states`` is refused for models without a state; ``default_states`` is the default for the
    others. If a deployment has the name ``model_id``, a number is appended to it, unless
    ``is_named``: then it is refused. With ``replaces``, the new deployment takes over the name when
    it is ready.
    """

    model_id: str | None = None
    is_named: bool = False
    replaces: bool = False
    default_states: int | None = None

    @property
    def spec(self) -> DeploymentSpec:
        """Return what remains of the request once the model is deployed."""
        names = DeploymentSpec.__struct_fields__
        return DeploymentSpec(**{name: getattr(self, name) for name in names})


class DeploymentState(enum.Enum):
    """Whether a deployment can serve."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"
    REMOVED = "removed"


class LoadingStage(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a stage that is being loaded."""

    doing: Annotated[
        str, msgspec.Meta(extra_json_schema={"enum": ["fetching", "loading", "warming up"]})
    ]
    done_bytes: Count
    """Bytes fetched from the hub, or loaded."""
    total_bytes: Count
    """0 while unknown."""


class StageRecord(OnUnit, msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def place(self) -> tuple[object, ...]:
        """Return its unit, its layers and its part of them."""
        return *self.unit, self.start_layer, self.end_layer, self.part


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The plan in force. Without stages there is none yet.

    ``remarks`` say which weights have a format other than that of ``quantization``. ``arithmetic``
    is that of every stage on a CPU; None until the first plan has chosen a fast one, which later
    plans keep. ``arithmetic_note`` is a line about what it gains or costs, and may be empty.
    ``prediction`` is None if the plan was made without one.
    """

    quantization: Quantization = Quantization.NONE
    remarks: tuple[str, ...] = ()
    arithmetic: Arithmetic | None = Arithmetic.EXACT
    arithmetic_note: str = ""
    stages: tuple[StageRecord, ...] = ()
    prediction: Prediction | None = None
    rejections: tuple[Rejection, ...] = ()


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


class FilesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The sources from which nodes get the model's files.

    They read the model at their own path if there is no ``manifest``, or if they are among
    ``own_files``; the others get the files of the ``manifest`` by content. ``transfers`` are the
    progress of that, ``verification`` what is known of the integrity of the files (None if nothing
    was fetched).
    """

    manifest: Manifest | None = None
    own_files: tuple[NodeId, ...] = ()
    transfers: tuple[TransferRecord, ...] = ()
    verification: Verification | None = None

    def manifest_for(self, node: NodeId) -> Manifest | None:
        """Return the files that a node gets by content; None if it reads its own."""
        return None if node in self.own_files else self.manifest


class DraftRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The deployment of a small model that drafts for another one.

    If it ``is_own``, it was deployed for that purpose, and is removed together with the other.
    """

    deployment: DeploymentId
    context_tokens: int
    is_own: bool


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


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The known facts about a model.

    ``stored_format`` is the format of most of the weights, ``files`` that of the files:
    ``safetensors`` or ``gguf``. ``fingerprint`` is that of the model at the node from which it was
    deployed; None if it was not computed.
    """

    num_layers: int
    family: str = ""
    num_parameters: int = 0
    stored_format: str = ""
    files: str = ""
    fingerprint: ModelFingerprint | None = None
    sampling_defaults: dict[str, float | int] = {}


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The current status of a deployment. Its coordinator changes it.

    ``reason`` says why it does not serve. Every stage has ``num_states`` state slots (0 for a model
    without state). ``done_bytes`` and ``total_bytes`` are the weights loaded so far. If the drafts
    come from a model, ``small`` is its deployment. ``num_recoveries`` counts how often it became
    ready again after a loss, the last time after ``recovery_seconds``. ``ready_in_seconds`` is its
    coordinator's estimate when it published this, if it is not ready and that is known.
    ``successor`` is the node that a leaving coordinator has chosen to follow it.
    ``rebalance_note`` says, in one line, what a better plan would gain, or why the last one was
    abandoned. It has moved to a better plan ``num_moves`` times, the last time to one that was
    predicted to be faster by the fraction ``last_gain``.
    """

    state: DeploymentState
    context_tokens: int
    cache_tokens: int
    num_states: int = 0
    reason: str = ""
    plan: PlanRecord = PlanRecord()
    files: FilesRecord = FilesRecord()
    done_bytes: int = 0
    total_bytes: int = 0
    small: DraftRecord | None = None
    num_recoveries: int = 0
    recovery_seconds: float | None = None
    ready_in_seconds: float | None = None
    successor: NodeId | None = None
    rebalance_note: str = ""
    num_moves: int = 0
    last_gain: float | None = None


class DeploymentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment as every agent knows it. The record with the highest (epoch, revision) counts.

    ``model_id`` is what clients call it, ``created`` seconds since 1970. ``voters`` are the nodes
    that knew of the deployment when its epoch was claimed; with ``has_quorum`` enough of them
    agreed to it (see ``Claim``), and without it, any record that has one takes precedence.
    """

    deployment: DeploymentId
    epoch: Epoch
    revision: int
    model_id: str
    created: int
    spec: DeploymentSpec
    facts: ModelFacts
    status: DeploymentStatus
    voters: tuple[NodeId, ...] = ()
    has_quorum: bool = True

    @property
    def stages(self) -> tuple[StageRecord, ...]:
        """Return the stages of the plan in force."""
        return self.status.plan.stages

    @property
    def is_ready(self) -> bool:
        """Return whether it serves."""
        return self.status.state is DeploymentState.READY

    @property
    def is_removed(self) -> bool:
        """Return whether it has ended."""
        return self.status.state is DeploymentState.REMOVED

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
            num_layers=self.facts.num_layers,
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

    def with_status(self, **changes: object) -> DeploymentRecord:
        """Return the record with these fields of its status changed."""
        return replace(self, status=replace(self.status, **changes))

    def removed(self, reason: str) -> DeploymentRecord:
        """Return the record of a deployment that has ended."""
        return self.with_status(
            state=DeploymentState.REMOVED,
            reason=reason,
            plan=replace(self.status.plan, stages=()),
        )

    def with_plan(self, **changes: object) -> DeploymentRecord:
        """Return the record with these fields of its plan changed."""
        return self.with_status(plan=replace(self.status.plan, **changes))

    def with_stage(self, index: int, **changes: object) -> DeploymentRecord:
        """Return the record with these fields of one of its stages changed."""
        stages = list(self.stages)
        stages[index] = replace(stages[index], **changes)
        return self.with_plan(stages=tuple(stages))

    def with_files(self, **changes: object) -> DeploymentRecord:
        """Return the record with these fields of its files changed."""
        return self.with_status(files=replace(self.status.files, **changes))


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
    per second, ``net_gain`` what is left of it after the cost. ``load_bytes`` are loaded in
    ``load_seconds``, and no sequence gets a token for ``pause_seconds``; with ``needs_room`` that
    includes the loading.
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
    load_bytes: int = 0
    load_seconds: float = 0.0
    pause_seconds: float = 0.0
    needs_room: bool = False
