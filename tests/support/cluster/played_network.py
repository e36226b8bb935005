"""A network of nodes in virtual time: links that delay, are cut one way or both, and heal.

A node sees another leave at once when that one's process dies, and after a lease of silence when
it is cut off. What was sent over a session that is lost never arrives.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from support.virtual_time.loop import Owner, VirtualLoop, owner

from potluck.cluster.network.membership import MethodTable
from potluck.errors import CallError, NodeLostError, PotluckError, SilentNodeError
from potluck.types.cluster import NodeId

LEASE_SECONDS = 1.0


class Process:
    """A running agent, as the network sees it: what it answers, and who is there for it."""

    def __init__(self, network: Network, node_id: NodeId) -> None:
        self.network = network
        self.node_id = node_id
        self.is_alive = True
        self.tasks: Owner = set()
        self.there: dict[NodeId, Process] = {}
        self.methods = MethodTable()
        self.on_join: Callable[[NodeId], None] = _ignore
        self.on_leave: Callable[[NodeId], None] = _ignore
        self.take: Callable[[object], None] = _drop
        self._calls: dict[int, _Call] = {}
        self._requests: dict[int, tuple[NodeId, asyncio.Task[None]]] = {}

    def run(self, work: Callable[..., object], *arguments: object) -> None:
        """Do something in this process, if it lives; its tasks end with it."""
        if not self.is_alive:
            return
        token = owner.set(self.tasks)
        try:
            work(*arguments)
        finally:
            owner.reset(token)

    def nodes(self) -> frozenset[NodeId]:
        """The other members as this node sees them."""
        return frozenset(self.there)

    def reachable_nodes(self) -> frozenset[NodeId]:
        """As ``Membership.reachable_nodes``."""
        return self.nodes() | {self.node_id}

    async def call(
        self, node_id: NodeId, method: str, payload: bytes, *, timeout_seconds: float = 5.0
    ) -> bytes:
        """As ``Membership.call``."""
        call = self._begin(node_id, method, payload, is_stream=False)
        try:
            async with asyncio.timeout(timeout_seconds):
                part = await call.inbox.get()
        except TimeoutError as error:
            raise CallError(f"node {node_id} did not answer {method!r}") from error
        finally:
            self._finish(call)
        if isinstance(part, PotluckError):
            raise part
        assert part is not None
        return part

    def call_stream(
        self, node_id: NodeId, method: str, payload: bytes, *, silence_seconds: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """As ``Membership.call_stream``."""
        if node_id != self.node_id and node_id not in self.there:
            raise NodeLostError(node_id, f"node {node_id} is not in the cluster")
        return self._stream(node_id, method, payload, silence_seconds)

    async def _stream(
        self, node_id: NodeId, method: str, payload: bytes, silence_seconds: float | None
    ) -> AsyncGenerator[bytes, None]:
        call = self._begin(node_id, method, payload, is_stream=True)
        try:
            while True:
                try:
                    async with asyncio.timeout(silence_seconds):
                        part = await call.inbox.get()
                except TimeoutError as error:
                    raise SilentNodeError(f"node {node_id} was silent") from error
                if part is None:
                    return
                if isinstance(part, PotluckError):
                    raise part
                yield part
        finally:
            self._finish(call)

    def _begin(self, node_id: NodeId, method: str, payload: bytes, *, is_stream: bool) -> _Call:
        if node_id != self.node_id and node_id not in self.there:
            raise NodeLostError(node_id, f"node {node_id} is not in the cluster")
        self.network.calls.append((self.node_id, node_id, method))
        call = _Call(number=next(self.network.call_numbers), node_id=node_id)
        self._calls[call.number] = call
        self.network.send(
            self,
            node_id,
            lambda there: there._called(self, call.number, method, payload, is_stream),
        )
        return call

    def _finish(self, call: _Call) -> None:
        if self._calls.pop(call.number, None) is not None and not call.is_over:
            self.network.send(self, call.node_id, lambda there: there._call_cancelled(call.number))

    def _called(
        self, caller: Process, number: int, method: str, payload: bytes, is_stream: bool
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._answer(caller, number, method, payload, is_stream)
        )
        self._requests[number] = (caller.node_id, task)
        task.add_done_callback(lambda _: self._requests.pop(number, None))

    async def _answer(
        self, caller: Process, number: int, method: str, payload: bytes, is_stream: bool
    ) -> None:
        def reply(part: bytes | PotluckError | None, *, is_last: bool) -> None:
            self.network.send(
                self, caller.node_id, lambda there: there._replied(caller, number, part, is_last)
            )

        try:
            answer = await self.methods.find(method)
            async with aclosing(answer(caller.node_id, payload)) as parts:
                async for part in parts:
                    reply(part, is_last=not is_stream)
            if is_stream:
                reply(None, is_last=True)
        except PotluckError as error:
            reply(CallError(error.message, hint=error.hint), is_last=True)
        except Exception as error:  # noqa: BLE001 - the caller would wait forever
            self.network.loop.call_exception_handler(
                {"message": f"{method} failed", "exception": error}
            )
            reply(CallError(f"{method!r} failed on the node called"), is_last=True)

    def _replied(
        self, asker: Process, number: int, part: bytes | PotluckError | None, is_last: bool
    ) -> None:
        call = self._calls.get(number)
        if asker is self and call is not None:
            call.is_over = is_last
            call.inbox.put_nowait(part)

    def _call_cancelled(self, number: int) -> None:
        if number in self._requests:
            self._requests[number][1].cancel()

    def saw_join(self, other: Process) -> None:
        """Another node is there."""
        known = self.there.get(other.node_id)
        if known is other:
            return
        if known is not None:
            self.saw_leave(known)
        self.there[other.node_id] = other
        self.on_join(other.node_id)

    def saw_leave(self, other: Process) -> None:
        """Another node is gone, or cut off."""
        if self.there.get(other.node_id) is not other:
            return
        del self.there[other.node_id]
        for call in self._calls.values():
            if call.node_id == other.node_id:
                call.is_over = True
                call.inbox.put_nowait(
                    NodeLostError(other.node_id, f"node {other.node_id} left the cluster")
                )
        for node_id, task in list(self._requests.values()):
            if node_id == other.node_id:
                task.cancel()
        self.on_leave(other.node_id)


@dataclass(slots=True, kw_only=True)
class _Call:
    number: int
    node_id: NodeId
    inbox: asyncio.Queue[bytes | PotluckError | None] = field(default_factory=asyncio.Queue)
    is_over: bool = False


Delivery = Callable[[Process], object]


@dataclass(slots=True, kw_only=True)
class _Direction:
    """From one node to another. ``held`` waits in the sender's buffers while it is cut."""

    draws: random.Random
    is_cut: bool = False
    num_changes: int = 0
    last_arrival: float = 0.0
    slow_seconds: float = 0.0
    held: list[tuple[int, Process, Delivery]] = field(default_factory=list)


class Network:
    """Every pair of nodes has a session while both live and hear each other.

    Each direction has its own random numbers, so that none depends on the order in which nodes
    happen to act at one instant. All times are ``pace`` times as long: with 0, everything is
    noticed and arrives at once. ``calls`` are the latest, each with its caller, node and method.
    """

    def __init__(self, loop: VirtualLoop, seed: int, *, pace: float = 1.0) -> None:
        self.loop = loop
        self.calls: deque[tuple[NodeId, NodeId, str]] = deque(maxlen=1000)
        self.call_numbers = itertools.count(1)
        self.num_sent = 0
        self._seed = seed
        self._pace = pace
        self._processes: dict[NodeId, Process] = {}
        self._directions: dict[tuple[NodeId, NodeId], _Direction] = {}
        self._sessions: dict[tuple[NodeId, NodeId], int] = {}  # even: none
        self._draws = random.Random(f"{seed} network")

    def start(self, node_id: NodeId) -> Process:
        """A node's agent starts; the others see it soon."""
        process = Process(self, node_id)
        self._processes[node_id] = process
        for other in sorted(self._processes):
            if other != node_id:
                self._end_session(node_id, other)
                self._join_later(node_id, other)
        return process

    def crash(self, process: Process, *, is_silent: bool) -> None:
        """The process dies; with ``is_silent`` its machine does."""
        process.is_alive = False
        for task in list(process.tasks):
            task.cancel()
        del self._processes[process.node_id]
        for other in sorted(self._processes):
            self._end_session(process.node_id, other)
            seen_by = self._processes[other]
            is_cut = self._direction(process.node_id, other).is_cut
            seconds = LEASE_SECONDS if is_silent or is_cut else 0.0
            seconds += self._draws.uniform(0.005, 0.1)
            self._later(seconds, seen_by.run, seen_by.saw_leave, process)

    def cut(self, sender: NodeId, receiver: NodeId) -> None:
        """Nothing gets from one node to another any more."""
        direction = self._direction(sender, receiver)
        if direction.is_cut:
            return
        direction.is_cut = True
        direction.num_changes += 1
        seconds = LEASE_SECONDS + self._draws.uniform(0.0, 0.3)
        self.loop.call_later(
            self._pace * seconds, self._silent, sender, receiver, direction.num_changes
        )

    def heal(self, sender: NodeId, receiver: NodeId) -> None:
        """It does again; what the sender's system has kept arrives now if the session stands."""
        direction = self._direction(sender, receiver)
        if not direction.is_cut:
            return
        direction.is_cut = False
        direction.num_changes += 1
        held, direction.held = direction.held, []
        for session, process, deliver in held:
            if session == self._session(sender, receiver):
                self.loop.call_soon(process.run, deliver, process)
        if not self._direction(receiver, sender).is_cut:
            self._join_later(sender, receiver)

    def slow(self, sender: NodeId, receiver: NodeId, seconds: float) -> None:
        """Let everything from one node to another take longer."""
        self._direction(sender, receiver).slow_seconds = seconds

    def hears(self, receiver: NodeId, sender: NodeId) -> bool:
        """Whether a session stands and is not cut in this direction."""
        if receiver == sender:
            return True
        is_up = self._session(sender, receiver) % 2 == 1
        return is_up and not self._direction(sender, receiver).is_cut

    def send(self, sender: Process, receiver: NodeId, deliver: Delivery) -> None:
        """Send a message; messages from one node to another arrive in order, or not at all."""
        if not sender.is_alive:
            return
        self.num_sent += 1
        if receiver == sender.node_id:
            self.loop.call_later(self._pace * 0.0001, sender.run, deliver, sender)
            return
        session = self._session(sender.node_id, receiver)
        if session % 2 == 0:
            return
        direction = self._direction(sender.node_id, receiver)
        seconds = self._pace * (direction.draws.uniform(0.0002, 0.003) + direction.slow_seconds)
        direction.last_arrival = max(direction.last_arrival + 1e-7, self.loop.time() + seconds)
        self.loop.call_at(
            direction.last_arrival, self._arrive, direction, session, sender, receiver, deliver
        )

    def _arrive(
        self,
        direction: _Direction,
        session: int,
        sender: Process,
        receiver: NodeId,
        deliver: Delivery,
    ) -> None:
        process = self._processes.get(receiver)
        if process is None or self._session(sender.node_id, receiver) != session:
            return
        if direction.is_cut:
            direction.held.append((session, process, deliver))
            return
        process.run(deliver, process)

    def _silent(self, sender: NodeId, receiver: NodeId, num_changes: int) -> None:
        """The lease is over: the receiver closes the session, and says so if that gets through."""
        direction = self._direction(sender, receiver)
        if direction.num_changes != num_changes:
            return
        first, second = self._processes.get(receiver), self._processes.get(sender)
        if first is None or second is None or self._session(sender, receiver) % 2 == 0:
            return
        back = self._direction(receiver, sender)
        self._end_session(sender, receiver)
        first.run(first.saw_leave, second)
        seconds = LEASE_SECONDS if back.is_cut else 0.0
        seconds += self._draws.uniform(0.001, 0.1)
        self._later(seconds, second.run, second.saw_leave, first)

    def _join_later(self, one: NodeId, other: NodeId) -> None:
        self._later(self._draws.uniform(0.1, 0.6), self._join, one, other)

    def _later(self, seconds: float, work: Callable[..., object], *arguments: object) -> None:
        self.loop.call_later(self._pace * seconds, work, *arguments)

    def _join(self, one: NodeId, other: NodeId) -> None:
        first, second = self._processes.get(one), self._processes.get(other)
        is_cut = self._direction(one, other).is_cut or self._direction(other, one).is_cut
        if first is None or second is None or is_cut:
            return
        if self._session(one, other) % 2 == 1:
            return
        if first.there.get(other) is second or second.there.get(one) is first:
            self._join_later(one, other)  # one of the two has not noticed yet
            return
        key = (min(one, other), max(one, other))
        self._sessions[key] = self._session(one, other) + 1
        first.run(first.saw_join, second)
        second.run(second.saw_join, first)

    def _end_session(self, one: NodeId, other: NodeId) -> None:
        number = self._session(one, other)
        if number % 2 == 1:
            self._sessions[min(one, other), max(one, other)] = number + 1

    def _session(self, one: NodeId, other: NodeId) -> int:
        return self._sessions.get((min(one, other), max(one, other)), 0)

    def _direction(self, sender: NodeId, receiver: NodeId) -> _Direction:
        direction = self._directions.get((sender, receiver))
        if direction is None:
            direction = _Direction(draws=random.Random(f"{self._seed} {sender} {receiver}"))
            self._directions[sender, receiver] = direction
        return direction


def _ignore(node_id: NodeId) -> None:
    return


def _drop(message: object) -> None:
    return
