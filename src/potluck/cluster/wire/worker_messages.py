"""Messages between an agent and its worker, over a socket pair.

Each message is four bytes of length (little-endian) and a msgpack document, tagged with its type.
"""

from __future__ import annotations

import struct
from dataclasses import asdict

import msgspec

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.listener import RoutedConnections
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.trust.credentials import Credentials
from potluck.types.cluster import Epoch, NodeId
from potluck.types.content import Manifest, Transfer
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.speed import StepTime
from potluck.types.unit import UnitAddress

MAX_MESSAGE_BYTES = 2**20
LENGTH = struct.Struct("<I")


class Located:
    """A message with the address of a listener, in three fields of its own."""

    __slots__ = ()
    host: str
    port: int
    name: str

    @property
    def address(self) -> EdgeAddress:
        """Return the address of the listener."""
        return EdgeAddress(host=self.host, port=self.port, name=self.name)


class Peer(Located, msgspec.Struct, frozen=True, kw_only=True):
    """The other end of an edge, and the address at which it listens.

    The address is empty if the peer connects to us.
    """

    node_id: NodeId
    host: str = ""
    port: int = 0
    name: str = ""

    @classmethod
    def at(cls, node_id: NodeId, address: EdgeAddress) -> Peer:
        """Return a peer that listens at an address."""
        return cls(node_id=node_id, **asdict(address))


class StageFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a stage's model, known by content.

    ``job`` names the sources in the node's transfer process. Fetched chunks are stored on the node
    if ``keep``.
    """

    manifest: Manifest
    job: str
    keep: bool = True


class StageSpec(HeldStage, frozen=True, kw_only=True):
    """One stage of a deployment: what a worker has to load, and holds then.

    ``index`` counts the stages from 0; the members of a group have consecutive indices, the
    leader's first. ``unit_id`` is a unit of the node that receives this. ``model`` is MODEL as
    every node of the plan can read it. ``num_bytes`` is the host memory that the plan has counted
    for it, without mapped weights. It is computed in ``arithmetic``, or refused. With
    ``cache_disk_bytes``, cache blocks are stored on disk, up to this size (see ``BlockStore``).
    With ``files`` the model is read by content from the sources that they name, and otherwise from
    ``model`` on the node itself.
    """

    index: int
    num_stages: int
    model: str
    max_step_tokens: int
    max_step_sequences: int
    cache_disk_bytes: int = 0
    files: StageFiles | None = None

    @property
    def held(self) -> HeldStage:
        """Return what a worker holds that has loaded this stage."""
        names = HeldStage.__struct_fields__
        return HeldStage(**{name: getattr(self, name) for name in names})

    def is_same_holding(self, other: HeldStage) -> bool:
        """Return whether a worker that has loaded this stage has thereby loaded ``other``.

        The epoch, the place in the plan, the plan's counts and the source of the bytes do not
        matter.
        """
        if not isinstance(other, StageSpec):
            return False
        placed = msgspec.structs.replace(
            other, index=self.index, num_stages=self.num_stages, files=self.files
        )
        return super().is_same_holding(placed)


class EdgeRoute(msgspec.Struct, frozen=True, kw_only=True):
    """How edges to the worker arrive: at its node's port, under a name.

    The worker inherits ``descriptor``, for ``HandedConnections``.
    """

    address: EdgeAddress
    descriptor: int

    @classmethod
    def of(cls, routed: RoutedConnections) -> EdgeRoute:
        """Return the route that a worker gets."""
        return cls(address=routed.address, descriptor=routed.fileno())


class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load the stage on ``unit`` and listen for its incoming edge on ``listen_host``, or at its
    ``route`` if it has one.

    ``device_free_bytes`` are free on a unit with memory of its own, and None on one without. For
    ``packed_cache_bytes`` see ``AgentConfig``. ``step_seconds`` is the longest time for one call
    into the unit's engine, such as a step; None sets no limit.
    """

    spec: StageSpec
    unit: UnitAddress
    device_free_bytes: int | None
    identity: Credentials
    listen_host: str
    num_threads: int
    route: EdgeRoute | None = None
    packed_cache_bytes: int | None
    step_seconds: float | None = None


class Listen(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Listen for the incoming edge of ``epoch`` at a new address; the answer is ``Listening``.

    Only once the stage is loaded. The edges of the epoch in force are not affected.
    """

    epoch: Epoch


class Connect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open the outgoing edge to ``following`` and accept the incoming one from ``preceding``.

    The stage is stage ``index`` of ``epoch`` from now on: the edges of a lower epoch are closed,
    and its sequences are dropped. The answer is ``Ready``, or ``Disconnected`` if the edges cannot
    be opened or an epoch as high as this has been seen.

    An edge whose sender cannot reach its receiver is opened by the receiver: ``dials_preceding``
    and ``awaits_following`` say so for those to and from this stage.

    A stage that is a ``member`` of a group has an edge to each other one of ``members`` and one
    from it, and those to ``preceding`` and ``following`` only if it leads.
    """

    epoch: Epoch
    index: int
    preceding: Peer
    following: Peer
    members: tuple[Peer, ...] = ()
    member: int = 0
    dials_preceding: bool = False
    awaits_following: bool = False


class Disconnect(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Close the edges of ``epoch`` and of lower ones, and refuse to open any of them later.

    The answer is ``Disconnected``, once nothing is computed for them any more.
    """

    epoch: Epoch


class Report(msgspec.Struct, frozen=True, tag=True):
    """Report totals; the answer is ``Stats``. Only once the stage is loaded."""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How much of the weights has been loaded or, before that, fetched from the hub.

    With ``is_warming_up`` all of them are loaded, and the engine prepares for the first step.
    ``transfer`` is the agent's information on files that are known by content.
    """

    done_bytes: int
    total_bytes: int
    is_fetching: bool = False
    is_warming_up: bool = False
    transfer: Transfer | None = None


class MappedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the worker maps into memory, and its length."""

    path: str
    num_bytes: int


class Loaded(Located, msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The weights are loaded, and the incoming edge is awaited at this address.

    ``memory`` is the worker's memory plan. ``read_bytes`` were read from the model's files
    (including headers) in ``seconds``. Weights that ``memory`` lists as mapped are in
    ``mapped_file``. ``is_kept``: the worker already held the stage, and read nothing for it. Its
    step times are stored under ``model_shape`` (see ``types.speed``). ``kept_blocks`` is empty if
    no cache blocks are stored; otherwise it identifies everything that their contents depend on
    here.
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
    name: str = ""


class Listening(Located, msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The incoming edge of ``epoch`` is awaited at this address."""

    epoch: Epoch
    host: str
    port: int
    name: str = ""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Both edges of ``epoch`` are open."""

    epoch: Epoch


class Disconnected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The edges of ``epoch`` are closed, or were not opened, and its sequences are dropped.

    The worker keeps its weights and waits for the next ``Connect``.
    """

    epoch: Epoch
    message: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The stage has ended and the worker is exiting.

    ``fault`` is the value of a ``Fault`` if the unit has failed, and empty otherwise.
    ``is_defect``: it was an unexpected exception.
    """

    message: str
    hint: str
    fault: str = ""
    is_defect: bool = False


class EdgePath(msgspec.Struct, frozen=True, kw_only=True):
    """The kernel's figures of an edge that leads to a node."""

    node_id: NodeId
    path: PathFigures


class Stats(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Totals since the start, the memory that the process holds now, and current activity.

    ``cpu_seconds`` are those of ``compute_seconds`` in which the compute thread ran.
    ``busy_seconds`` is how long the current call into the engine has taken; 0 between calls.
    ``num_dropped_frames`` were late or duplicate and not computed. ``sending_seconds`` is how long
    the current result has been sending; 0 between results. ``slowdown`` is how many times longer
    recent steps take than earlier ones (``StepTimes.slowdown``); None while unknown. ``step_times``
    are those of recent steps. ``way`` is the edge for results, None while the stage is not
    connected. ``num_experts_in_memory`` of the ``num_experts_used`` matrices
    of mapped experts were in memory when they were used (see ``ExpertUse``). A member of a group
    has spent ``exchange_seconds`` of ``compute_seconds`` in ``num_exchanges`` with others, and has
    been waiting in the current one for ``waiting_seconds``.
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
    way: EdgePath | None = None
    num_experts_used: int = 0
    num_experts_in_memory: int = 0
    num_exchanges: int = 0
    exchange_seconds: float = 0.0
    waiting_seconds: float = 0.0


ToWorker = Load | Listen | Connect | Disconnect | Report
FromWorker = Progress | Loaded | Listening | Ready | Disconnected | Failed | Stats


def encode(message: ToWorker | FromWorker) -> bytes:
    """Return length and document."""
    document = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(document)) + document


def checked_length(prefix: bytes) -> int:
    """Return the length with which a message begins; raise ``ValueError`` if it is too large."""
    (length,) = LENGTH.unpack(prefix)
    if length > MAX_MESSAGE_BYTES:
        raise ValueError(f"a control message of {length} bytes")
    return int(length)


decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
