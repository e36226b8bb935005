"""Measures how fast the ways to the other nodes are, and keeps the figures.

When two nodes meet, one of them asks the other to listen (``link.listen``), connects to it as an
edge would, and both measure in turn (``cluster.links.exchange``). An agent takes part in at most
one measurement that it began and one that another began, each on a thread of its own with a
deadline. What they send is bounded (``cluster.links.budget``).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from potluck.cluster.background import Spawn
from potluck.cluster.calls import (
    LinkAnswer,
    LinkBusy,
    LinkListening,
    ListenForLink,
    decode,
    encode,
)
from potluck.cluster.edges.connect import connect_both_ways
from potluck.cluster.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.edges.frames import Scope
from potluck.cluster.edges.hello import Hello
from potluck.cluster.edges.listener import EdgeListener
from potluck.cluster.edges.path_figures import PathFigures
from potluck.cluster.links.budget import LEAST_SECONDS, LinkBudget
from potluck.cluster.links.exchange import LIMITS, SIZES, Measured, follow, lead
from potluck.cluster.links.figures import LinkFigures, Sample
from potluck.cluster.links.schedule import LinkSchedule
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.trust.credentials import Credentials
from potluck.errors import CallError, EdgeError, PotluckError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.speed import LinkSpeed

_log = logging.getLogger(__name__)

_SCOPE_NAME = DeploymentId("link")

_CALL_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
"""TCP, TLS and hello are four round trips."""

_EXCHANGE_SECONDS = 20.0
"""For both turns: the large frames take 0.6 s at most as planned, and small ones half a second or
four round trips."""

_FRAMES_SECONDS = 0.1
"""How long the large frames of one turn may take. What else waits for the network meanwhile, waits
that much longer."""

_BUSY_FRAMES_SECONDS = 0.02
"""The same on a node that computes for somebody."""

_UNCOUNTED_BYTES = 2 * sum(SIZES) + 16 * 1024
"""What passes in one direction, where the kernel does not count."""

_LONGEST_WAIT_SECONDS = 600.0
"""For a node that says that it may not be measured now."""

_SETTLE_SECONDS = 1.0
"""For the links of nodes that have just joined: the call for the speeds has a few seconds."""

_END_SECONDS = 1.0

_MOST_FIGURES = 4096
"""Nodes whose figures are kept, those that have left included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Of a measurement: the way from here, what the kernel saw, and what it cost."""

    measured: Measured
    path: PathFigures | None
    spent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Allowed:
    """How long the largest frames of one turn may take; see ``exchange.lead``."""

    seconds: float
    unresolved_seconds: float


_Ends = tuple[OutgoingEdge, IncomingEdge]


class _Measurement:
    """One connection with ``peer``, on a thread of its own.

    ``outcome`` is set in the loop. It is an ``EdgeError`` if the connection failed or was cut.
    """

    def __init__(
        self,
        peer: NodeId,
        open_ends: Callable[[], _Ends],
        *,
        leads_first: bool,
        allowed: _Allowed,
        listener: EdgeListener | None = None,
    ) -> None:
        self.peer = peer
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[_Outcome] = self._loop.create_future()
        self._open_ends = open_ends
        self._leads_first = leads_first
        self._allowed = allowed
        self._listener = listener
        self._changing = threading.Lock()
        self._ends: _Ends | None = None
        self._is_cut = False
        self._deadline = self._loop.call_later(_CONNECT_SECONDS + _EXCHANGE_SECONDS, self.cut)
        threading.Thread(target=self._run, name="measure-link", daemon=True).start()

    @property
    def is_connected(self) -> bool:
        """Whether anything was sent."""
        return self._ends is not None

    def cut(self) -> None:
        """End it, from the loop. While it connects, it goes on for some seconds and then ends."""
        with self._changing:
            self._is_cut = True
            ends = self._ends
        if self._listener is not None:
            self._listener.close()
        if ends is not None:
            ends[0].close()

    def _run(self) -> None:
        outcome: _Outcome | None = None
        error: PotluckError | None = None
        try:
            outcome = self._measure()
        except PotluckError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - the boundary of the thread
            _log.exception("the link to node %s could not be measured", self.peer)
            error = EdgeError(self.peer, f"{type(failure).__name__}: {failure}")
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._settle, outcome, error)

    def _measure(self) -> _Outcome:
        began = time.thread_time()
        try:
            ends = self._open_ends()
        finally:
            if self._listener is not None:
                self._listener.close()
        try:
            self._own(ends)
            if self._leads_first:
                measured = self._lead(ends)
                follow(*ends)
            else:
                follow(*ends)
                measured = self._lead(ends)
            path = ends[0].path()
        finally:
            ends[0].close()
        counted = _UNCOUNTED_BYTES if path is None else max(path.sent_bytes, path.received_bytes)
        wire_seconds = counted / measured.bytes_per_second
        return _Outcome(
            measured=measured,
            path=path,
            spent_seconds=max(wire_seconds, time.thread_time() - began),
        )

    def _lead(self, ends: _Ends) -> Measured:
        allowed = self._allowed
        return lead(
            *ends, allowed_seconds=allowed.seconds, unresolved_seconds=allowed.unresolved_seconds
        )

    def _own(self, ends: _Ends) -> None:
        with self._changing:
            self._ends = ends
            if self._is_cut:
                raise EdgeError(self.peer, "it was given up")

    def _settle(self, outcome: _Outcome | None, error: PotluckError | None) -> None:
        self._deadline.cancel()
        if self.outcome.done():
            return
        if outcome is not None:
            self.outcome.set_result(outcome)
        elif error is not None:
            self.outcome.set_exception(error)


class Links:
    """For use in the agent's loop.

    ``is_busy`` tells whether the node computes for somebody, or sends what others compute.
    """

    def __init__(
        self,
        membership: Membership,
        credentials: Credentials,
        *,
        listen_host: str,
        spawn: Spawn,
        connect_seconds: float = _CONNECT_SECONDS,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        draws: random.Random | None = None,
    ) -> None:
        self._membership = membership
        self._credentials = credentials
        self._listen_host = listen_host
        self._spawn = spawn
        self._connect_seconds = connect_seconds
        self._is_busy = is_busy
        self._clock = clock
        self._schedule = LinkSchedule(membership.node_id, draws or random.Random())
        self._budget = LinkBudget(clock())
        self._figures: dict[NodeId, LinkFigures] = {}
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._measurements: set[_Measurement] = set()
        self._num_begun = 0
        self._is_closed = False

    def register(self, methods: MethodTable) -> None:
        """Have the call of other agents answered."""
        methods.register_for_caller("link.listen", self._on_listen)

    def joined(self, node_id: NodeId) -> None:
        """Measure the link to a node that has joined, soon."""
        known = self._figures.get(node_id)
        measured_at = None if known is None else known.measured_at
        self._schedule.joined(node_id, self._clock(), measured_at=measured_at)
        self._changed.set()

    def left(self, node_id: NodeId) -> None:
        """End what goes on with a node that has left. Its figures are kept for its return."""
        self._schedule.left(node_id)
        for measurement in list(self._measurements):
            if measurement.peer == node_id:
                measurement.cut()
        self._changed.set()

    def used(self, node_id: NodeId, path: PathFigures) -> None:
        """Take note of what an edge to a node shows, and measure its link again if in doubt."""
        known = self._figures.get(node_id)
        if known is None:
            return
        self._figures[node_id] = figures = known.used(path, self._clock())
        if figures.is_doubtful:
            self._schedule.doubted(node_id, self._clock())
            self._changed.set()

    def speeds(self) -> tuple[LinkSpeed, ...]:
        """Return the links to the other members that were measured, by node id."""
        now = self._clock()
        found = (
            known.speed(node_id, now)
            for node_id in sorted(self._membership.nodes())
            if (known := self._figures.get(node_id)) is not None
        )
        return tuple(each for each in found if each is not None)

    async def settled(self) -> tuple[LinkSpeed, ...]:
        """Return ``speeds``, after a moment if nodes have joined that are about to be measured."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SETTLE_SECONDS):
                while self._budget.wait_seconds(self._clock()) == 0 and any(
                    node not in self._figures and self._schedule.is_new(node)
                    for node in self._membership.nodes()
                ):
                    self._news.clear()
                    await self._news.wait()
        return self.speeds()

    async def run(self) -> None:
        """Measure what is due, one link at a time, until cancelled."""
        while True:
            self._changed.clear()
            upcoming = self._schedule.next()
            now = self._clock()
            if upcoming is None:
                await self._changed.wait()
                continue
            node_id, due_at = upcoming
            wait_seconds = max(due_at - now, self._budget.wait_seconds(now))
            if wait_seconds > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_seconds):
                        await self._changed.wait()
                continue
            await self._begin(node_id)

    async def close(self) -> None:
        """End what goes on, and begin nothing more; takes a second at most."""
        self._is_closed = True
        outcomes = [each.outcome for each in self._measurements]
        for measurement in list(self._measurements):
            measurement.cut()
        if outcomes:
            await asyncio.wait(outcomes, timeout=_END_SECONDS)

    async def _begin(self, node_id: NodeId) -> None:
        """Measure the link to a node, or find out why not."""
        try:
            await self._measure(node_id)
        except PotluckError as error:
            _log.debug("the link to node %s was not measured: %s", node_id, error.message)
            self._schedule.failed(node_id, self._clock())
            self._news.set()

    async def _measure(self, node_id: NodeId) -> None:
        budget_seconds = self._budget.available(self._clock())
        self._num_begun += 1
        request = ListenForLink(number=self._num_begun, budget_seconds=budget_seconds)
        answer: LinkAnswer = decode(
            await self._membership.call(
                node_id, "link.listen", encode(request), timeout_seconds=_CALL_SECONDS
            ),
            LinkAnswer,
        )
        if isinstance(answer, LinkBusy):
            wait_seconds = min(max(0.0, answer.wait_seconds), _LONGEST_WAIT_SECONDS)
            self._schedule.was_busy(node_id, self._clock(), wait_seconds=wait_seconds)
            return
        if not _is_ip_address(answer.host):
            raise EdgeError(node_id, f"{answer.host[:60]!r} is no IP address")
        hello = _hello(self._membership.node_id, request.number)
        await self._conclude(
            _Measurement(
                node_id,
                lambda: connect_both_ways(
                    (answer.host, answer.port),
                    self._credentials,
                    hello,
                    peer=node_id,
                    limits=LIMITS,
                    timeout_seconds=self._connect_seconds,
                ),
                leads_first=True,
                allowed=self._allowed(answer.budget_seconds),
            )
        )

    async def _on_listen(self, caller: NodeId, payload: bytes) -> bytes:
        request = decode(payload, ListenForLink)
        now = self._clock()
        wait_seconds = self._budget.wait_seconds(now)
        if self._measurements or self._is_closed or wait_seconds > 0:
            return encode(LinkBusy(wait_seconds=wait_seconds))
        try:
            listener = EdgeListener(self._listen_host, self._credentials)
        except OSError as error:
            raise CallError(f"cannot listen at {self._listen_host}: {error.strerror}") from error
        hello = _hello(caller, request.number)
        measurement = _Measurement(
            caller,
            lambda: listener.accept_both_ways(
                hello, peer=caller, limits=LIMITS, timeout_seconds=self._connect_seconds
            ),
            leads_first=False,
            allowed=self._allowed(request.budget_seconds),
            listener=listener,
        )
        self._measurements.add(measurement)
        self._spawn(self._follow(measurement))
        host, port = listener.address
        return encode(
            LinkListening(host=host, port=port, budget_seconds=self._budget.available(now))
        )

    async def _follow(self, measurement: _Measurement) -> None:
        try:
            await self._conclude(measurement)
        except PotluckError as error:
            _log.debug("node %s did not measure its link: %s", measurement.peer, error.message)

    async def _conclude(self, measurement: _Measurement) -> None:
        """Wait for a measurement, and keep what it says."""
        self._measurements.add(measurement)
        try:
            outcome = await measurement.outcome
        except asyncio.CancelledError:
            measurement.cut()
            raise
        except PotluckError:
            if measurement.is_connected:  # nobody has counted what it sent
                self._budget.spend(LEAST_SECONDS, self._clock())
            raise
        finally:
            self._measurements.discard(measurement)
        now = self._clock()
        self._budget.spend(outcome.spent_seconds, now)
        sample = Sample.of(outcome.measured, outcome.path, now)
        # The one that was measured last comes last; the first is forgotten when there are too many.
        known = self._figures.pop(measurement.peer, LinkFigures())
        self._figures[measurement.peer] = figures = known.measured(sample)
        if len(self._figures) > _MOST_FIGURES:
            del self._figures[next(iter(self._figures))]
        has_changed = known.is_doubtful and len(figures.samples) == 1
        self._schedule.measured(measurement.peer, now, has_changed=has_changed)
        self._changed.set()
        self._news.set()

    def _allowed(self, peer_budget_seconds: float) -> _Allowed:
        """What this node's turn may take.

        Both nodes pay for both turns, and the sizes before take a third of what the last does.
        """
        budget_seconds = min(self._budget.available(self._clock()), peer_budget_seconds)
        most = max(0.0, min(_FRAMES_SECONDS, budget_seconds / 3))
        seconds = min(most, _BUSY_FRAMES_SECONDS) if self._is_busy() else most
        return _Allowed(seconds=seconds, unresolved_seconds=2 * most)


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _hello(first: NodeId, number: int) -> Hello:
    """What the node that connects says: no edge of a deployment is called so."""
    scope = Scope(deployment=_SCOPE_NAME, epoch=Epoch(number=number, coordinator=first))
    return Hello(scope=scope, index=0)
