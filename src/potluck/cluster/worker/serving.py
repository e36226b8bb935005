"""A loaded stage at one epoch after another: its edges come and go, its weights stay.

The thread that answers the agent calls ``Serving`` and never waits in it. Each epoch has a thread
of its own that opens the edges and computes; it touches the engine only when the thread of the
epoch before has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from potluck.cluster.edges.connect import connect_edge
from potluck.cluster.edges.edge import EdgeLimits, IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Scope
from potluck.cluster.edges.hello import Hello
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.trust.credentials import Credentials
from potluck.cluster.worker.block_keeper import BlockKeeper
from potluck.cluster.worker.messages import Connect, Disconnected, Ready, WayInUse
from potluck.cluster.worker.stage import Stage, StageTotals
from potluck.errors import DefectError, EdgeClosedError, EdgeError, EngineError, PotluckError
from potluck.grammars.limits import STAGE_STACK_BYTES
from potluck.grammars.step_masks import StepMasks
from potluck.loading.load import LoadedStage
from potluck.quantities import format_seconds
from potluck.types.cluster import DeploymentId, Epoch
from potluck.types.expert_use import ExpertUse
from potluck.types.program import Shard

_log = logging.getLogger(__name__)

_CONNECT_SECONDS = 30.0
"""All stages are loaded when they are told to connect, so this is only the network's time."""

STEP_END_SECONDS = 20.0
"""For a step of the epoch before to end, after its edges were closed. It cannot be interrupted. The
longest steps, prefills on slow boards, take about as long; the coordinator waits twice as long for
``stage.connect``."""

_END_SECONDS = 5.0
"""For the thread that computes to end when the worker does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedStage:
    """What stays the same over epochs.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Who is told what, on any thread.

    ``edges`` hears how each epoch begins and ends. ``failed`` hears why the worker has to end while
    the edges still stand, and ``ended`` afterwards. ``stuck`` ends the process and does not return.
    """

    edges: Callable[[Ready | Disconnected], None]
    failed: Callable[[PotluckError], None]
    ended: Callable[[], None]
    stuck: Callable[[PotluckError], None]


class Serving:
    """Called by one thread; ``totals`` are for any."""

    def __init__(self, stage: ServedStage, told: Told) -> None:
        self.totals = StageTotals()
        self._stage = stage
        self._told = told
        self._listener: EdgeListener | None = None
        self._session: _Session | None = None
        self._seen: Epoch | None = None

    @property
    def shard(self) -> Shard:
        """The part of the model that the stage is."""
        return self._stage.loaded.program.shard

    def listen(self) -> tuple[str, int]:
        """Listen for an incoming edge at a new address, and no longer at one that nobody used.

        The edges that stand are left alone. Raises ``EngineError``.
        """
        self._stop_listening()
        try:
            self._listener = EdgeListener(self._stage.listen_host, self._stage.credentials)
        except OSError as error:
            raise EngineError(f"cannot listen for the edge: {error.strerror}") from error
        return self._listener.address

    def connect(self, request: Connect) -> None:
        """Close the edges of a lower epoch, and serve ``request.epoch`` as soon as it is over."""
        if (reason := self._refusal(request.epoch)) is not None:
            self._told.edges(Disconnected(epoch=request.epoch, message=reason))
            return
        self._seen = request.epoch
        listener, self._listener = self._listener, None
        if listener is None:
            message = "it does not listen: the stage was not started at this epoch"
            self._told.edges(Disconnected(epoch=request.epoch, message=message))
            return
        before = self._session
        if before is not None:
            before.cut(f"epoch {request.epoch.number} has taken its place")
        self._session = _Session(
            self._stage, request, listener, self._told, self.totals, before=before
        )

    def disconnect(self, epoch: Epoch) -> None:
        """Close the edges of ``epoch`` and of lower ones, and refuse them from now on."""
        if self._seen is None or self._seen < epoch:
            self._seen = epoch
        session = self._session
        if session is None or session.is_over or epoch < session.epoch:
            self._told.edges(Disconnected(epoch=epoch, message="there are no edges"))
        else:
            session.cut("its epoch is over")  # and says so when it is

    @property
    def expert_use(self) -> ExpertUse:
        """See ``LoadableEngine``."""
        return self._stage.loaded.engine.expert_use

    def way(self) -> WayInUse | None:
        """Return what is known of the way of the results; None while there is no edge."""
        return None if self._session is None else self._session.way()

    def close(self) -> bool:
        """Close what is open; return whether nothing is computed any more, after a little while."""
        self._stop_listening()
        is_over = True
        if self._session is not None:
            self._session.cut("the worker ends")
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


class _Session:
    """The stage at one epoch, from opening its edges to their end."""

    def __init__(
        self,
        stage: ServedStage,
        request: Connect,
        listener: EdgeListener,
        told: Told,
        totals: StageTotals,
        *,
        before: _Session | None,
    ) -> None:
        self.epoch = request.epoch
        self._stage = stage
        self._request = request
        self._listener = listener
        self._told = told
        self._totals = totals
        self._before = before
        self._changing = threading.Lock()
        self._cut_because: str | None = None
        self._edges: list[IncomingEdge | OutgoingEdge] = []
        self._connected: SimpleQueue[OutgoingEdge | None] = SimpleQueue()
        self._not_connected: PotluckError | None = None
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        before_stack = threading.stack_size(STAGE_STACK_BYTES)
        try:
            self._thread.start()
        finally:
            threading.stack_size(before_stack)

    @property
    def is_over(self) -> bool:
        """Whether it computes no more, and has said so."""
        return not self._thread.is_alive()

    def cut(self, because: str) -> None:
        """Close the edges, or open none. A step that is being computed goes on to its end."""
        with self._changing:
            if self._cut_because is None:
                self._cut_because = because
            edges, self._edges = self._edges, []
        self._connected.put(None)
        self._listener.close()
        for edge in edges:
            edge.close()

    def way(self) -> WayInUse | None:
        """Return what the outgoing edge shows; None if there is none, or the kernel cannot say."""
        with self._changing:
            edges = [each for each in self._edges if isinstance(each, OutgoingEdge)]
        paths = ((each.peer_node_id, each.path()) for each in edges)
        found = (WayInUse(node_id=node, path=path) for node, path in paths if path is not None)
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
                outgoing, incoming = self._open_edges()
            finally:
                self._await_the_one_before(deadline)
            self._compute(outgoing, incoming)
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
            self._told.edges(Disconnected(epoch=self.epoch, message=message))
            return
        try:
            # Before the edges close: who sees that plans anew, and the unit is out by then.
            self._told.failed(failure)
        finally:
            self.cut(failure.message)
            self._told.ended()

    def _open_edges(self) -> tuple[OutgoingEdge, IncomingEdge]:
        """Open both at the same time: all stages of a plan do, and none waits for another."""
        request = self._request
        threading.Thread(target=self._connect, name="connect", daemon=True).start()
        scope = Scope(deployment=self._stage.deployment, epoch=self.epoch)
        try:
            incoming = self._listener.accept(
                Hello(scope=scope, index=request.index),
                peer=request.preceding.node_id,
                limits=self._stage.limits,
                timeout_seconds=_CONNECT_SECONDS,
            )
            self._own(incoming)
            outgoing = self._connected.get()
        except EdgeClosedError as error:
            raise self._not_connected or error from None
        finally:
            self._listener.close()
        if outgoing is None:
            raise self._not_connected or EdgeClosedError(request.following.node_id, "closed")
        return outgoing, incoming

    def _connect(self) -> None:
        """Open the outgoing edge, on a thread that nobody waits for: it may take its time."""
        request = self._request
        scope = Scope(deployment=self._stage.deployment, epoch=self.epoch)
        try:
            edge = connect_edge(
                (request.following.host, request.following.port),
                self._stage.credentials,
                Hello(scope=scope, index=request.index + 1),
                peer=request.following.node_id,
                limits=self._stage.limits,
                timeout_seconds=_CONNECT_SECONDS,
            )
            self._own(edge)
        except PotluckError as error:
            self._give_up(error)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("an edge could not be opened")
            self._give_up(DefectError(f"{type(error).__name__}: {error}"))
        else:
            self._connected.put(edge)

    def _give_up(self, error: PotluckError) -> None:
        """Nobody need wait for the other edge."""
        self._not_connected = error
        self._connected.put(None)
        self._listener.close()

    def _own(self, edge: IncomingEdge | OutgoingEdge) -> None:
        """Close it with the session. Raises ``EdgeClosedError`` if the session is cut already."""
        with self._changing:
            if self._cut_because is None:
                self._edges.append(edge)
                return
        edge.close()
        raise EdgeClosedError(edge.peer_node_id, "closed")

    def _await_the_one_before(self, deadline: float) -> None:
        before, self._before = self._before, None
        if before is not None and not before.join(max(0.0, deadline - time.monotonic())):
            limit = format_seconds(STEP_END_SECONDS)
            self._told.stuck(
                EngineError(
                    f"a step of epoch {before.epoch.number} did not end within {limit} after its"
                    " edges were closed"
                )
            )

    def _compute(self, outgoing: OutgoingEdge, incoming: IncomingEdge) -> None:
        loaded = self._stage.loaded
        stage = Stage(
            loaded.engine,
            loaded.program.shard,
            loaded.program.hidden_size,
            incoming,
            outgoing,
            self._totals,
            self._stage.masks,
            self._stage.keeper,
        )
        self._told.edges(Ready(epoch=self.epoch))
        stage.run()

    def _reset(self) -> PotluckError | None:
        """Drop the sequences; return why that failed, if it did."""
        try:
            self._stage.masks.reset()
            self._stage.loaded.engine.reset()
        except PotluckError as error:
            return error
        except Exception as error:  # noqa: BLE001 - the boundary of the thread
            _log.exception("the stage could not be reset")
            return DefectError(f"the stage could not be reset: {type(error).__name__}: {error}")
        return None
