"""A loaded stage over several epochs: its edges change, its weights stay.

The thread that answers the agent calls ``Serving``, which never blocks. Each epoch has a thread of
its own that opens the edges and computes; it uses the engine only when the thread of the previous
epoch has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from potluck.cluster.network.edges.address import EdgeAddress
from potluck.cluster.network.edges.connect import connect_end
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.network.edges.listener import EdgeListener
from potluck.cluster.network.trust.connection_sources import HandedConnections
from potluck.cluster.network.trust.credentials import Credentials
from potluck.cluster.wire.worker_messages import Connect, Disconnected, EdgePath, Peer, Ready
from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.group import TURN_BYTES, mesh_limits
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.cluster.worker.stage_edges import StageEdges, WantedEdges
from potluck.engines.loading.load import LoadedStage
from potluck.errors import DefectError, EdgeClosedError, EdgeError, EngineError, PotluckError
from potluck.grammars.limits import STAGE_STACK_BYTES
from potluck.grammars.step_masks import StepMasks
from potluck.scheduling.frame_limits import EdgeLimits
from potluck.types.cluster import DeploymentId, Epoch
from potluck.types.engine import ExpertUse
from potluck.types.program import Shard
from potluck.types.quantities import format_seconds

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 30.0
"""All stages are loaded when they are connected, so this only covers network delays."""

STEP_END_SECONDS = 20.0
"""Time for a step of the previous epoch to end after its edges were closed. It cannot be
interrupted. The longest steps, prefills on slow boards, take about as long; the coordinator waits
twice as long for ``stage.connect``."""

_END_SECONDS = 5.0
"""Time for the compute thread to end when the worker does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStage:
    """The parts of a stage that do not change between epochs.

    ``masks`` are those of the last stage's sequences. ``keeper`` is closed at the end, by
    ``Serving``.
    """

    deployment: DeploymentId
    loaded: LoadedStage
    masks: StepMasks
    limits: EdgeLimits
    credentials: Credentials
    listen_host: str
    keeper: BlockKeeper | None = None
    route: tuple[HandedConnections, EdgeAddress] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCallbacks:
    """Callbacks, on any thread.

    ``edges`` is called when an epoch begins and ends. ``failed`` is called with the reason why the
    worker has to end while the edges are still open, and ``ended`` afterwards. ``stuck`` exits the
    process and does not return.
    """

    edges: Callable[[Ready | Disconnected], None]
    failed: Callable[[PotluckError], None]
    ended: Callable[[], None]
    stuck: Callable[[PotluckError], None]


class Serving:
    """Called by one thread; any thread can read ``totals``."""

    def __init__(self, stage: ServedStage, callbacks: ServingCallbacks) -> None:
        self.totals = StageTotals()
        self._stage = stage
        self._callbacks = callbacks
        self._listener: EdgeListener | None = None
        self._session: _Session | None = None
        self._seen: Epoch | None = None

    @property
    def shard(self) -> Shard:
        """Return the part of the model that the stage computes."""
        return self._stage.loaded.program.shard

    def listen(self) -> EdgeAddress:
        """Listen for an incoming edge at a new address, and stop listening at an unused one.

        Open edges are not affected. Raise ``EngineError``.
        """
        self._stop_listening()
        if self._stage.route is not None and self._session is not None:
            self._session.stop_listening()  # or it would accept the connections for the new edge
        try:
            self._listener = _listener(self._stage)
        except OSError as error:
            raise EngineError(f"cannot listen for the edge: {error.strerror}") from error
        return self._listener.address

    def connect(self, request: Connect) -> None:
        """Close the edges of a lower epoch, and serve ``request.epoch`` once it is over."""
        if (reason := self._refusal(request.epoch)) is not None:
            self._callbacks.edges(Disconnected(epoch=request.epoch, message=reason))
            return
        self._seen = request.epoch
        listener, self._listener = self._listener, None
        if listener is None:
            message = "it is not listening: the stage was not started at this epoch"
            self._callbacks.edges(Disconnected(epoch=request.epoch, message=message))
            return
        before = self._session
        if before is not None:
            before.cut(f"replaced by epoch {request.epoch.number}")
        self._session = _Session(
            self._stage, request, listener, self._callbacks, self.totals, before=before
        )

    def disconnect(self, epoch: Epoch) -> None:
        """Close the edges of ``epoch`` and of lower ones, and refuse them from now on."""
        if self._seen is None or self._seen < epoch:
            self._seen = epoch
        session = self._session
        if session is None or session.is_over or epoch < session.epoch:
            self._callbacks.edges(Disconnected(epoch=epoch, message="there are no edges"))
        else:
            session.cut("its epoch is over")  # and reports when it is

    @property
    def expert_use(self) -> ExpertUse:
        """See ``LoadableEngine``."""
        return self._stage.loaded.engine.expert_use

    def way(self) -> EdgePath | None:
        """Return the figures of the outgoing edge; None while there is none."""
        return None if self._session is None else self._session.way()

    def close(self) -> bool:
        """Close everything; return whether all computing has ended, after a short wait."""
        self._stop_listening()
        is_over = True
        if self._session is not None:
            self._session.cut("the worker is exiting")
            is_over = self._session.join(_END_SECONDS)
        if self._stage.keeper is not None:
            self._stage.keeper.close()
        return is_over

    def _refusal(self, epoch: Epoch) -> str | None:
        if self._seen is None or self._seen < epoch:
            return None
        return f"epoch {epoch.number} is over: epoch {self._seen.number} was seen"

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _listener(stage: ServedStage) -> EdgeListener:
    if stage.route is None:
        return EdgeListener.at(stage.listen_host, stage.credentials)
    handed, address = stage.route
    handed.drop_waiting()  # they belong to an edge that is no longer awaited
    return EdgeListener(handed.duplicate(), address, stage.credentials)


class _Session:
    """The stage in one epoch, from opening its edges to their end."""

    def __init__(
        self,
        stage: ServedStage,
        request: Connect,
        listener: EdgeListener,
        callbacks: ServingCallbacks,
        totals: StageTotals,
        *,
        before: _Session | None,
    ) -> None:
        self.epoch = request.epoch
        self._stage = stage
        self._request = request
        self._listener = listener
        self._callbacks = callbacks
        self._totals = totals
        self._before = before
        self._changing = threading.Lock()
        self._cut_because: str | None = None
        self._edges: list[IncomingEdge | OutgoingEdge] = []
        self._connected: SimpleQueue[tuple[Hello, IncomingEdge | OutgoingEdge] | None] = (
            SimpleQueue()
        )
        self._not_connected: PotluckError | None = None
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        before_stack = threading.stack_size(STAGE_STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(before_stack)

    @property
    def is_over(self) -> bool:
        """Return whether it has stopped computing, and reported that."""
        return not self._thread.is_alive()

    def cut(self, because: str) -> None:
        """Close the edges, or stop opening them. A running step is completed."""
        with self._changing:
            if self._cut_because is None:
                self._cut_because = because
            edges, self._edges = self._edges, []
        self._connected.put(None)
        self._listener.close()
        for edge in edges:
            edge.close()

    def stop_listening(self) -> None:
        """Stop opening edges, which ends the session unless they are open; from any thread."""
        self._listener.close()

    def way(self) -> EdgePath | None:
        """Return the figures of the outgoing edge; None if there is none, or they are
        unavailable.
        """
        with self._changing:
            edges = [each for each in self._edges if isinstance(each, OutgoingEdge)]
        paths = ((each.peer_node_id, each.path()) for each in edges)
        found = (EdgePath(node_id=node, path=path) for node, path in paths if path is not None)
        return next(found, None)

    def join(self, seconds: float) -> bool:
        """Wait for its thread; return whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        deadline = time.monotonic() + STEP_END_SECONDS
        message, failure = "", None
        try:
            try:
                edges = self._open_edges()
            finally:
                self._await_predecessor(deadline)
            self._compute(edges)
        except EdgeError as error:
            message = self._cut_because or error.message
        except PotluckError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("the stage failed")
            failure = DefectError(f"the stage failed: {type(error).__name__}: {error}")
        if failure is None:
            failure = self._reset()
        if failure is None:
            self.cut(message)
            self._callbacks.edges(Disconnected(epoch=self.epoch, message=message))
            return
        try:
            # Before the edges close: a node that notices replans, and the unit must be out by then.
            self._callbacks.failed(failure)
        finally:
            self.cut(failure.message)
            self._callbacks.ended()

    def _open_edges(self) -> StageEdges:
        """Open all edges concurrently, as all stages do, so that none waits for another."""
        request = self._request
        scope = Scope(deployment=self._stage.deployment, epoch=self.epoch)
        wanted = WantedEdges.of(request, scope)
        limits = mesh_limits(self._stage.limits) if request.members else self._stage.limits
        for hello, peer in wanted.dialed.items():
            threading.Thread(
                target=self._connect, args=(hello, peer, limits), name="connect", daemon=True
            ).start()
        try:
            ends = self._listener.accept_ends(
                wanted.awaited, limits=limits, timeout_seconds=_CONNECT_SECONDS
            )
            for accepted in ends.values():
                self._own(accepted)
            while len(ends) < len(wanted.awaited) + len(wanted.dialed):
                connected = self._connected.get()
                if connected is None:
                    peer_id = request.following.node_id
                    raise self._not_connected or EdgeClosedError(peer_id, "closed")
                hello, edge = connected
                ends[hello] = edge
        except EdgeClosedError as error:
            raise self._not_connected or error from None
        finally:
            self._listener.close()
        part = self._stage.loaded.program.shard.part
        incoming = {each: end for each, end in ends.items() if isinstance(end, IncomingEdge)}
        outgoing = {each: end for each, end in ends.items() if isinstance(end, OutgoingEdge)}
        return StageEdges.of(part, incoming, outgoing, self._totals.exchange)

    def _connect(self, hello: Hello, peer: Peer, limits: EdgeLimits) -> None:
        """Open an edge, on a thread that nothing waits for, as it may take long."""
        try:
            edge = connect_end(
                peer.address,
                self._stage.credentials,
                hello,
                peer=peer.node_id,
                limits=limits,
                timeout_seconds=_CONNECT_SECONDS,
            )
            self._own(edge)
            if hello.sender is not None and isinstance(edge, OutgoingEdge):
                edge.reserve(TURN_BYTES)
        except PotluckError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("an edge could not be opened")
            self._give_up(DefectError(f"{type(error).__name__}: {error}"))
        else:
            self._connected.put((hello, edge))

    def _give_up(self, error: PotluckError) -> None:
        """Stop waiting for the other edges."""
        self._not_connected = self._not_connected or error
        self._connected.put(None)
        self._listener.close()

    def _own(self, edge: IncomingEdge | OutgoingEdge) -> None:
        """Close it together with the session. Raise ``EdgeClosedError`` if the session has already
        ended.
        """
        with self._changing:
            if self._cut_because is None:
                self._edges.append(edge)
                return
        edge.close()
        raise EdgeClosedError(edge.peer_node_id, "closed")

    def _await_predecessor(self, deadline: float) -> None:
        before, self._before = self._before, None
        if before is not None and not before.join(max(0.0, deadline - time.monotonic())):
            limit = format_seconds(STEP_END_SECONDS)
            self._callbacks.stuck(
                EngineError(
                    f"a step of epoch {before.epoch.number} did not end within {limit} after its"
                    " edges were closed"
                )
            )

    def _compute(self, edges: StageEdges) -> None:
        loaded = self._stage.loaded
        if edges.group is not None:
            loaded.engine.join_group(edges.group)
        stage = Stage(
            loaded.engine,
            loaded.program.shard,
            loaded.program.hidden_size,
            edges.incoming,
            edges.outgoing,
            self._totals,
            self._stage.masks,
            self._stage.keeper,
            edges.group,
        )
        self._callbacks.edges(Ready(epoch=self.epoch))
        stage.run()

    def _reset(self) -> PotluckError | None:
        """Drop the sequences; return why that failed, if it did."""
        loaded = self._stage.loaded
        try:
            self._stage.masks.reset()
            if loaded.program.shard.part is not None:
                loaded.engine.join_group(None)
            loaded.engine.reset()
        except PotluckError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("the stage could not be reset")
            return DefectError(f"the stage could not be reset: {type(error).__name__}: {error}")
        return None
