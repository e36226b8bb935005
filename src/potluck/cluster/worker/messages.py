"""What an agent and its worker say to each other, over a socket pair.

Each message is four bytes of length (little-endian) and a msgpack document, tagged with its type.
"""

from __future__ import annotations

import struct

import msgspec

from potluck.cluster.edges.path_figures import PathFigures
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import DeploymentId, Epoch, NodeId, UnitId
from potluck.types.memory import MemoryPlan
from potluck.types.node import HeldStage
from potluck.types.quantization import Quantization
from potluck.types.speed import StepTime
from potluck.types.unit import UnitAddress

MAX_MESSAGE_BYTES = 2**20
LENGTH = struct.Struct("<I")


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """The other end of an edge. ``host`` and ``port`` are empty where the peer connects to us."""

    node_id: NodeId
    host: str = ""
    port: int = 0


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """PEM documents that the worker proves its membership with (see ``trust.Credentials``)."""

    node_id: NodeId
    certificate_pem: bytes
    private_key_pem: bytes
    authority_pem: bytes


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a deployment: what a worker has to load.

    ``index`` counts the stages from 0. ``unit_id`` is a unit of the node that is asked. ``model``
    is MODEL as every node of the plan can read it. ``num_bytes`` is what the plan has counted for
    it of the machine's memory, without weights where they are to be mapped, ``device_bytes`` of
    memory that is the unit's own. ``arithmetic`` is computed in, or the stage is refused. With
    ``cache_disk_bytes`` cache blocks are kept on disk, in at most as much (see ``BlockStore``).
    ``num_states`` is the number of state slots; 0 for a model without state.
    """

    deployment: DeploymentId
    epoch: Epoch
    index: int
    num_stages: int
    unit_id: UnitId
    model: str
    start_layer: int
    end_layer: int
    context_tokens: int
    num_blocks: int
    max_step_tokens: int
    max_step_sequences: int
    quantization: Quantization
    is_mapped: bool
    num_bytes: int
    device_bytes: int = 0
    arithmetic: Arithmetic = Arithmetic.EXACT
    cache_disk_bytes: int = 0
    num_states: int = 0

    @property
    def has_embedding(self) -> bool:
        """Whether it is the first stage."""
        return self.index == 0

    @property
    def has_head(self) -> bool:
        """Whether it is the last stage."""
        return self.index == self.num_stages - 1

    @property
    def held(self) -> HeldStage:
        """Return what a worker holds that has loaded this stage."""
        return HeldStage(
            deployment=self.deployment,
            epoch=self.epoch,
            unit_id=self.unit_id,
            start_layer=self.start_layer,
            end_layer=self.end_layer,
            has_embedding=self.has_embedding,
            has_head=self.has_head,
            context_tokens=self.context_tokens,
            num_blocks=self.num_blocks,
            num_states=self.num_states,
            quantization=self.quantization,
            arithmetic=self.arithmetic,
            is_mapped=self.is_mapped,
            num_bytes=self.num_bytes,
            device_bytes=self.device_bytes,
        )

    def is_same_holding(self, other: StageSpec) -> bool:
        """Return whether a worker that has loaded this stage has loaded ``other`` with it.

        The epoch, the place in the plan and what the plan has counted make no difference.
        """
        return self._holding == other._holding

    @property
    def _holding(self) -> tuple[bool, bool, StageSpec]:
        alike = msgspec.structs.replace(
            self,
            epoch=_NO_EPOCH,
            index=0,
            num_stages=0,
            num_bytes=0,
            device_bytes=0,
        )
        return self.has_embedding, self.has_head, alike


_NO_EPOCH = Epoch(number=0, coordinator=NodeId(""))


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the stage on ``unit`` and listen for its incoming edge on ``listen_host``.

    ``device_free_bytes`` are free on a unit with memory of its own, and None on one without.
    ``packed_cache_bytes``: see ``AgentConfig``. ``step_seconds`` is the longest time for one call
    into the unit's engine, such as a step; None sets no limit.
    """

    spec: StageSpec
    unit: UnitAddress
    device_free_bytes: int | None
    identity: Identity
    listen_host: str
    num_threads: int
    packed_cache_bytes: int | None
    step_seconds: float | None = None


class Listen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Listen for the incoming edge of ``epoch`` at a new address; the answer is ``Listening``.

    Only once the stage is loaded. The edges of the epoch that is in force are left alone.
    """

    epoch: Epoch


class Connect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open the outgoing edge to ``following`` and accept the incoming one from ``preceding``.

    The stage is stage ``index`` of ``epoch`` from now on: the edges of a lower epoch are closed,
    and its sequences are dropped. The answer is ``Ready``, or ``Disconnected`` if the edges cannot
    be opened or an epoch as high as this has been seen.
    """

    epoch: Epoch
    index: int
    preceding: Peer
    following: Peer


class Disconnect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close the edges of ``epoch`` and of lower ones, and refuse to open any of them later.

    The answer is ``Disconnected``, once nothing is computed for them any more.
    """

    epoch: Epoch


class Report(msgspec.Struct, frozen=True, tag=True):
    """Report totals; the answer is ``Stats``. Only once the stage is loaded."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How much of the weights is loaded, or, before that, fetched from the hub.

    With ``is_warming_up`` all of them are loaded, and the engine prepares for the first step.
    """

    done_bytes: int
    total_bytes: int
    is_fetching: bool = False
    is_warming_up: bool = False


class MappedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the worker reads as if it were memory, and its length."""

    path: str
    num_bytes: int


class Loaded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The weights are in place, and the incoming edge is awaited at this address.

    ``memory`` is what the worker has planned with, ``read_bytes`` came from the model's files
    (headers and all), in ``seconds``. The weights that ``memory`` has as mapped are in the
    ``mapped_file``. ``is_kept``: the worker held the stage already, and read nothing for it.
    ``model_shape`` (see ``types.speed``) is what its step times are kept under. ``kept_blocks`` is
    empty where no cache blocks are kept; otherwise it names what their bits depend on here.
    """

    host: str
    port: int
    memory: MemoryPlan
    read_bytes: int
    seconds: float
    mapped_file: MappedFile | None
    is_kept: bool = False
    model_shape: str = ""
    kept_blocks: str = ""


class Listening(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The incoming edge of ``epoch`` is awaited at this address."""

    epoch: Epoch
    host: str
    port: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Both edges of ``epoch`` stand."""

    epoch: Epoch


class Disconnected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The edges of ``epoch`` are closed, or were not opened, and its sequences are dropped.

    The worker keeps its weights and waits for the next ``Connect``.
    """

    epoch: Epoch
    message: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage has ended and the worker ends now.

    ``fault`` is the value of a ``Fault`` if the unit is of no use any more, and empty otherwise.
    ``is_defect``: it was an exception that nobody expected.
    """

    message: str
    hint: str
    fault: str = ""
    is_defect: bool = False


class WayInUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the kernel says of an edge that leads to a node."""

    node_id: NodeId
    path: PathFigures


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Totals since the start, the memory that the process holds now, and what goes on.

    ``cpu_seconds`` are those of ``compute_seconds`` in which the thread that computes ran.
    ``busy_seconds`` is how long the present call into the engine has taken; 0 between two.
    ``num_dropped_frames`` came late or twice and were not computed. ``sending_seconds`` is how long
    a result has been on its way out; 0 between two. ``slowdown`` is how many times as long as
    before steps take lately (see ``worker.pace``); None while that is not known. ``step_times`` are
    those of recent steps (see ``worker.step_times``). ``way`` is that of its results, None while
    the stage is not connected. ``num_experts_in_memory`` of the ``num_experts_used`` matrices of
    mapped experts were there when they were used (see ``ExpertUse``).
    """

    num_steps: int
    num_tokens: int
    compute_seconds: float
    send_seconds: float
    num_sent_bytes: int
    resident_bytes: int
    cpu_seconds: float = 0.0
    busy_seconds: float = 0.0
    num_dropped_frames: int = 0
    sending_seconds: float = 0.0
    slowdown: float | None = None
    step_times: tuple[StepTime, ...] = ()
    way: WayInUse | None = None
    num_experts_used: int = 0
    num_experts_in_memory: int = 0


ToWorker = Load | Listen | Connect | Disconnect | Report
FromWorker = Progress | Loaded | Listening | Ready | Disconnected | Failed | Stats


def encode(message: ToWorker | FromWorker) -> bytes:
    """Length and document."""
    document = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(document)) + document


def checked_length(prefix: bytes) -> int:
    """The length that a message begins with; raises ``ValueError`` if it is too large."""
    (length,) = LENGTH.unpack(prefix)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a control message of {length} bytes")
    return int(length)


decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
