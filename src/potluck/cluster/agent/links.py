"""Measures the speed of the links to other nodes.

When two nodes meet, one asks the other to listen (``link.listen``), connects to it as an edge
would, and both measure in turn (``cluster.network.links.exchange``). An agent takes part in at most
one measurement that it began and one that another node began, each on a thread of its own with a
deadline. Their traffic is limited (``cluster.network.links.schedule``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial

from potluck.cluster.background import Spawn, is_set_within, on_thread
from potluck.cluster.network.edges.connect import connect_both_ways
from potluck.cluster.network.edges.edge import IncomingEdge, OutgoingEdge
from potluck.cluster.network.edges.frames import Hello, Scope
from potluck.cluster.network.edges.listener import EdgeEndpoint, EdgeListener
from potluck.cluster.network.edges.path_figures import PathFigures
from potluck.cluster.network.links.exchange import LIMITS, SIZES, Measured, run_client, run_server
from potluck.cluster.network.links.figures import LinkFigures, Sample
from potluck.cluster.network.links.schedule import LEAST_SECONDS, LinkBudget, LinkSchedule
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.network.membership.address import ip_of
from potluck.cluster.wire.calls import (
    CheckLinks,
    LinkAnswer,
    LinkBusy,
    LinkListening,
    ListenForLink,
    Unreachable,
)
from potluck.cluster.wire.methods import CHECK_LINKS, LISTEN
from potluck.errors import CallError, EdgeError, PotluckError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.node import MAX_LINKS
from potluck.types.speed import LinkSpeed

_log = logging.getLogger(__name__)

_SCOPE_NAME = DeploymentId("link")

_CONNECT_SECONDS = 5.0
"""The time limit for connecting: TCP, TLS and hello take four round trips."""

_EXCHANGE_SECONDS = 20.0
"""The time limit for both turns: the large frames are planned to take at most 0.6 s, and small ones
half a second or four round trips."""

_FRAMES_SECONDS = 0.1
"""How long the large frames of one turn may take, which delays other traffic by as much."""

_BUSY_FRAMES_SECONDS = 0.02
"""The same on a node that is computing for a deployment."""

_UNCOUNTED_BYTES = 2 * sum(SIZES) + 16 * 1024
"""The bytes of a turn in one direction, if the kernel does not count them."""

_LONGEST_WAIT_SECONDS = 600.0
"""The longest delay before retrying a node that says that it cannot be measured now."""

_CHECK_SECONDS = (0.2, 1.0)
"""The delay before trying to connect to a node that has connected to this one."""

_LONGEST_CHECK_FACTOR = 64
"""Each try that comes to no result, because that node is busy, doubles the delay up to this."""

_MOST_AWAITED_CHECKS = 8

_SETTLE_SECONDS = 1.0
"""How long a call for link speeds waits for nodes that have just joined."""

_END_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """The outcome of a measurement: the speed from here, the kernel's figures, and the cost."""

    measured: Measured
    path: PathFigures | None
    spent_seconds: float


_Ends = tuple[OutgoingEdge, IncomingEdge]
_Lead = Callable[[OutgoingEdge, IncomingEdge], Measured]


class _Measurement:
    """One measurement with ``peer``, on a thread of its own.

    ``outcome`` is set in the event loop. It is an ``EdgeError`` if the connection failed or was
    cut, and an ``EngineError`` if no thread could be started.
    """

    def __init__(
        self,
        peer: NodeId,
        open_ends: Callable[[], _Ends],
        *,
        leads_first: bool,
        lead: _Lead,
        listener: EdgeListener | None = None,
    ) -> None:
        self.peer = peer
        self._open_ends = open_ends
        self._leads_first = leads_first
        self._lead = lead
        self._listener = listener
        self._changing = threading.Lock()
        self._ends: _Ends | None = None
        self._is_cut = False
        loop = asyncio.get_running_loop()
        deadline = loop.call_later(_CONNECT_SECONDS + _EXCHANGE_SECONDS, self.cut)
        self.outcome = on_thread(self._run, name="measure-link")
        self.outcome.add_done_callback(lambda _: deadline.cancel())

    @property
    def is_connected(self) -> bool:
        """Whether anything was sent."""
        return self._ends is not None

    def cut(self) -> None:
        """Abort the measurement, from the event loop. While it connects, this takes effect after
        seconds.
        """
        with self._changing:
            self._is_cut = True
            ends = self._ends
        if self._listener is not None:
            self._listener.close()
        if ends is not None:
            ends[0].close()

    def _run(self) -> _Outcome:
        try:
            return self._measure()
        except PotluckError:
            raise
        except Exception as error:
            _log.exception("could not measure the link to node %s", self.peer)
            raise EdgeError(self.peer, f"{type(error).__name__}: {error}") from error

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
                measured = self._lead(*ends)
                run_server(*ends)
            else:
                run_server(*ends)
                measured = self._lead(*ends)
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

    def _own(self, ends: _Ends) -> None:
        with self._changing:
            self._ends = ends
            if self._is_cut:
                raise EdgeError(self.peer, "the measurement was cancelled")


class Links:
    """The links of this node. For use in the agent's event loop.

    ``is_busy`` returns whether the node is computing for a deployment, or sends results of one.
    """

    def __init__(
        self,
        membership: Membership,
        endpoint: EdgeEndpoint,
        *,
        spawn: Spawn,
        connect_seconds: float = _CONNECT_SECONDS,
        is_busy: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        draws: random.Random | None = None,
    ) -> None:
        self._membership = membership
        self._endpoint = endpoint
        self._spawn = spawn
        self._connect_seconds = connect_seconds
        self._is_busy = is_busy
        self._clock = clock
        self._draws = draws or random.Random()
        self._schedule = LinkSchedule(membership.node_id, self._draws)
        self._budget = LinkBudget(clock())
        self._figures: dict[NodeId, LinkFigures] = {}
        self._reached: dict[NodeId, bool] = {}  # whether this node could connect when it last tried
        self._changed = asyncio.Event()
        self._news = asyncio.Event()
        self._measurements: set[_Measurement] = set()
        self._num_begun = 0
        self._num_awaited_checks = 0
        self._is_closed = False

    def register(self, methods: MethodTable) -> None:
        """Register the calls of other agents."""
        LISTEN.serve_for_caller(methods, self._on_listen)
        CHECK_LINKS.serve(methods, self._on_check)

    def joined(self, node_id: NodeId) -> None:
        """Schedule a measurement of the link to a node that has joined."""
        known = self._figures.get(node_id)
        measured_at = None if known is None else known.measured_at
        self._schedule.joined(node_id, self._clock(), measured_at=measured_at)
        self._changed.set()

    def left(self, node_id: NodeId) -> None:
        """Abort measurements with a node that has left. Its figures are kept for its return."""
        self._schedule.left(node_id)
        self._reached.pop(node_id, None)
        for measurement in list(self._measurements):
            if measurement.peer == node_id:
                measurement.cut()
        self._changed.set()

    def used(self, node_id: NodeId, path: PathFigures) -> None:
        """Record the figures of an edge to a node, and measure its link again if in doubt."""
        known = self._figures.get(node_id)
        if known is None:
            return
        self._figures[node_id] = figures = known.used(path, self._clock())
        if figures.is_doubtful:
            self._schedule.doubted(node_id, self._clock())
            self._changed.set()

    def speeds(self) -> tuple[LinkSpeed, ...]:
        """Return the measured links to the other members, by node id."""
        now = self._clock()
        found = (
            known.speed(node_id, now)
            for node_id in sorted(self._membership.nodes())
            if (known := self._figures.get(node_id)) is not None
        )
        return tuple(each for each in found if each is not None)

    def unreachable(self) -> tuple[NodeId, ...]:
        """Return the members that this node could not connect to when it last tried."""
        members = self._membership.nodes()
        return tuple(
            sorted(node for node, is_so in self._reached.items() if node in members and not is_so)
        )

    async def settled(self) -> tuple[LinkSpeed, ...]:
        """Return ``speeds``, after a short wait if nodes have just joined and are about to be
        measured.
        """
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
        """Measure the links that are due, one at a time, until cancelled."""
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
                await is_set_within(self._changed, wait_seconds)
                continue
            await self._begin(node_id)

    async def close(self) -> None:
        """Abort measurements and start no more; takes at most a second."""
        self._is_closed = True
        outcomes = [each.outcome for each in self._measurements]
        for measurement in list(self._measurements):
            measurement.cut()
        if outcomes:
            await asyncio.wait(outcomes, timeout=_END_SECONDS)

    async def _begin(self, node_id: NodeId) -> None:
        """Measure the link to a node, or find out why that fails."""
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
        answer = await LISTEN.call(self._membership, node_id, request)
        if isinstance(answer, LinkBusy):
            wait_seconds = min(max(0.0, answer.wait_seconds), _LONGEST_WAIT_SECONDS)
            self._schedule.was_busy(node_id, self._clock(), wait_seconds=wait_seconds)
            return
        if ip_of(answer.host) is None:
            raise EdgeError(node_id, f"{answer.host[:60]!r} is not an IP address")
        measurement = _Measurement(
            node_id,
            self._connecting(node_id, answer, request.number),
            leads_first=True,
            lead=self._lead(answer.budget_seconds),
        )
        try:
            await self._conclude(measurement)
        finally:
            if measurement.outcome.done():
                self._note_reached(node_id, is_reached=measurement.is_connected)

    def _connecting(
        self, node_id: NodeId, answer: LinkListening, number: int
    ) -> Callable[[], _Ends]:
        """Return a function that connects to a node that listens for it."""
        hello = _hello(self._membership.node_id, number)
        return lambda: connect_both_ways(
            answer.address,
            self._endpoint.credentials,
            hello,
            peer=node_id,
            limits=LIMITS,
            timeout_seconds=self._connect_seconds,
        )

    def _note_reached(self, node_id: NodeId, *, is_reached: bool) -> None:
        if node_id not in self._membership.nodes():
            return
        if self._reached.get(node_id, True) and not is_reached:
            _log.warning(
                "this node cannot connect to node %s; that node opens the edges between the two",
                node_id,
            )
        self._reached[node_id] = is_reached

    async def _check(self, node_id: NodeId) -> None:
        """Find out whether this node can connect to one that has connected to it."""
        factor = 1
        while True:
            await asyncio.sleep(factor * self._draws.uniform(*_CHECK_SECONDS))
            is_settled = node_id in self._reached or node_id not in self._membership.nodes()
            if is_settled or self._is_closed:
                return
            if await self._has_checked(node_id):
                return
            factor = min(2 * factor, _LONGEST_CHECK_FACTOR)

    async def _on_check(self, request: CheckLinks) -> Unreachable:
        """Try to connect to members now; answer which of them cannot be connected to."""
        nodes = frozenset(request.nodes) & self._membership.nodes()
        await asyncio.gather(*map(self._has_checked, nodes))
        return Unreachable(nodes=tuple(each for each in self.unreachable() if each in nodes))

    async def _has_checked(self, node_id: NodeId) -> bool:
        """Try to connect to a node, and note the result; return whether it could be tried."""
        self._num_begun += 1
        request = ListenForLink(number=self._num_begun, budget_seconds=0.0, is_check=True)
        try:
            answer = await LISTEN.call(self._membership, node_id, request)
        except PotluckError as error:
            _log.debug("could not try to connect to node %s: %s", node_id, error.message)
            return False
        if isinstance(answer, LinkBusy) or ip_of(answer.host) is None:
            return False
        connect = self._connecting(node_id, answer, request.number)

        def try_it() -> bool:
            try:
                outgoing, _ = connect()
            except EdgeError:
                return False
            outgoing.close()
            return True

        is_reached = await on_thread(try_it, name="check-link")
        self._note_reached(node_id, is_reached=is_reached)
        return True

    async def _on_listen(self, caller: NodeId, request: ListenForLink) -> LinkAnswer:
        now = self._clock()
        wait_seconds = self._budget.wait_seconds(now)
        if request.is_check:
            wait_seconds = 0.0
        if self._is_closed or wait_seconds > 0 or self._is_occupied(request):
            return LinkBusy(wait_seconds=wait_seconds)
        try:
            listener = self._endpoint.listen()
        except OSError as error:
            host = self._endpoint.listen_host
            raise CallError(f"cannot listen at {host}: {error.strerror}") from error
        hello = _hello(caller, request.number)
        if request.is_check:
            self._num_awaited_checks += 1
            self._spawn(self._await_check(listener, hello, caller))
            return _listening(listener, 0.0)
        measurement = _Measurement(
            caller,
            lambda: listener.accept_both_ways(
                hello, peer=caller, limits=LIMITS, timeout_seconds=self._connect_seconds
            ),
            leads_first=False,
            lead=self._lead(request.budget_seconds),
            listener=listener,
        )
        self._measurements.add(measurement)
        self._spawn(self._follow(measurement))
        return _listening(listener, self._budget.available(now))

    def _is_occupied(self, request: ListenForLink) -> bool:
        if request.is_check:
            return self._num_awaited_checks >= _MOST_AWAITED_CHECKS
        return bool(self._measurements)

    async def _await_check(self, listener: EdgeListener, hello: Hello, caller: NodeId) -> None:
        """Wait for a node that tests whether it can connect to this one."""

        def accept() -> None:
            try:
                outgoing, _ = listener.accept_both_ways(
                    hello, peer=caller, limits=LIMITS, timeout_seconds=self._connect_seconds
                )
                outgoing.close()
            except EdgeError as error:
                _log.debug("node %s did not connect: %s", caller, error.message)
            finally:
                listener.close()

        try:
            await on_thread(accept, name="await-check")
        finally:
            self._num_awaited_checks -= 1
            listener.close()

    async def _follow(self, measurement: _Measurement) -> None:
        try:
            await self._conclude(measurement)
            if measurement.peer not in self._reached:
                await self._check(measurement.peer)
        except PotluckError as error:
            _log.debug(
                "node %s did not complete a measurement: %s", measurement.peer, error.message
            )

    async def _conclude(self, measurement: _Measurement) -> None:
        """Wait for a measurement, and record its outcome."""
        self._measurements.add(measurement)
        try:
            outcome = await measurement.outcome
        except asyncio.CancelledError:
            measurement.cut()
            raise
        except PotluckError:
            measurement.cut()
            if measurement.is_connected:  # what it sent has not been counted
                self._budget.spend(LEAST_SECONDS, self._clock())
            raise
        finally:
            self._measurements.discard(measurement)
        now = self._clock()
        self._budget.spend(outcome.spent_seconds, now)
        sample = Sample.of(outcome.measured, outcome.path, now)
        # In order of measurement; the oldest is dropped when there are too many.
        known = self._figures.pop(measurement.peer, LinkFigures())
        self._figures[measurement.peer] = figures = known.measured(sample)
        if len(self._figures) > MAX_LINKS:
            del self._figures[next(iter(self._figures))]
        has_changed = known.is_doubtful and len(figures.samples) == 1
        self._schedule.measured(measurement.peer, now, has_changed=has_changed)
        self._changed.set()
        self._news.set()

    def _lead(self, peer_budget_seconds: float) -> _Lead:
        """Return the function that measures in this node's turn, with the time that it may take.

        Both nodes pay for both turns, and the smaller sizes take a third of the time of the last
        one.
        """
        budget_seconds = min(self._budget.available(self._clock()), peer_budget_seconds)
        most = max(0.0, min(_FRAMES_SECONDS, budget_seconds / 3))
        seconds = min(most, _BUSY_FRAMES_SECONDS) if self._is_busy() else most
        return partial(run_client, allowed_seconds=seconds, unresolved_seconds=2 * most)


def _listening(listener: EdgeListener, budget_seconds: float) -> LinkListening:
    return LinkListening(**asdict(listener.address), budget_seconds=budget_seconds)


def _hello(first: NodeId, number: int) -> Hello:
    """Return the hello of the connecting node, with a name that no deployment's edge has."""
    scope = Scope(deployment=_SCOPE_NAME, epoch=Epoch(number=number, coordinator=first))
    return Hello(scope=scope, index=0)
