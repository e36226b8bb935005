"""Sequences of other gateways, computed by the coordinator here, or relayed to a coordinator that
they cannot reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.methods import FEED, START_SEQUENCE, STOP_SEQUENCE
from potluck.cluster.wire.sequence_messages import (
    FeedUpdate,
    GenerateFailure,
    OpenFeed,
    StartAnswer,
    Started,
    StartSequence,
    StopSequence,
    TokenBatch,
)
from potluck.errors import CallError, EngineError, MovedError, OverloadedError, PotluckError
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceUpdate

_MAX_REMOTE_SEQUENCES = 192
"""The most sequences of other gateways, those that are relayed included."""

_RETRY_AFTER_SECONDS = 5


MAX_PART_NUMBERS = 8192
"""Tokens and alternatives per message: about 150 KB, far below the limit."""

_NUMBER_BYTES = 20
"""The approximate size of a token or an alternative in a message."""

MAX_WAITING_NUMBERS = 1 << 18
"""The limit for a gateway that reads more slowly than tokens are computed: some tens of megabytes.
"""

Start = Callable[[OnUpdate], Cancel]
"""Starts a sequence; raises the error that prevents it."""


class TokenFeed:
    """Batches the updates of sequences for one gateway. For use in the event loop.

    A message of a feed is built when the one before it has been sent. Updates that arrive in the
    meantime, of any sequence, go into the next one.
    """

    def __init__(self) -> None:
        self._live: dict[int, Cancel] = {}
        self._waiting: list[tuple[int, SequenceUpdate | GenerateFailure]] = []
        self._num_waiting_numbers = 0
        self._has_overflowed = False
        self._arrival = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Return the number of sequences being computed."""
        return len(self._live)

    def start(self, number: int, start: Start) -> None:
        """Start a sequence that the gateway calls ``number``. Raises as ``start`` does."""
        if number in self._live:
            raise CallError(f"sequence {number} already exists")
        if self._has_overflowed:
            raise _too_slow()

        def on_update(update: SequenceUpdate | Exception) -> None:
            self._take(number, update)

        self._live[number] = start(on_update)

    def stop(self, number: int) -> None:
        """Cancel a sequence; does nothing if it is not running."""
        cancel = self._live.pop(number, None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """Cancel all sequences."""
        for number in tuple(self._live):
            self.stop(number)

    async def parts(self) -> AsyncGenerator[TokenBatch, None]:
        """Yield batches of updates; the first is empty, which says that the feed is open.

        Raises ``CallError`` if more than ``MAX_WAITING_NUMBERS`` are waiting.
        """
        yield TokenBatch()
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            if self._has_overflowed:
                raise _too_slow()
            waiting, self._waiting = self._waiting, []
            self._num_waiting_numbers = 0
            for part in _in_batches(waiting):
                yield part

    def _take(self, number: int, update: SequenceUpdate | Exception) -> None:
        if isinstance(update, Exception):
            self._live.pop(number, None)
            self._waiting.append((number, GenerateFailure.of(_as_potluck_error(update))))
        else:
            if update.tokens[-1].finish_reason is not None:
                self._live.pop(number, None)
            self._waiting.append((number, update))
            self._num_waiting_numbers += _num_numbers(update)
        self._arrival.set()
        if self._num_waiting_numbers > MAX_WAITING_NUMBERS:
            # Now, because the reader of the batches may wait for the gateway for a long time.
            self._has_overflowed = True
            self._waiting.clear()
            self._num_waiting_numbers = 0
            self.close()


def _in_parts(update: SequenceUpdate) -> Iterator[SequenceUpdate]:
    """Split an update so that each part fits in a message."""
    tokens = update.tokens
    if _num_numbers(update) <= MAX_PART_NUMBERS:
        yield update
        return
    start = count = 0
    num_cached_tokens = update.num_cached_tokens
    for end, token in enumerate(tokens):
        here = _weight(token)
        if count + here > MAX_PART_NUMBERS and end > start:
            yield SequenceUpdate(tokens=tokens[start:end], num_cached_tokens=num_cached_tokens)
            start, count, num_cached_tokens = end, 0, 0
        count += here
    yield SequenceUpdate(tokens=tokens[start:], num_cached_tokens=num_cached_tokens)


def _in_batches(
    waiting: list[tuple[int, SequenceUpdate | GenerateFailure]],
) -> Iterator[TokenBatch]:
    fed: list[FeedUpdate] = []
    count = 0
    for number, given in waiting:
        if isinstance(given, GenerateFailure):
            fed.append(FeedUpdate(number, given))
            continue
        for part in _in_parts(given):
            here = _num_numbers(part)
            if fed and count + here > MAX_PART_NUMBERS:
                yield TokenBatch(tuple(fed))
                fed, count = [], 0
            fed.append(FeedUpdate(number, part))
            count += here
    if fed:
        yield TokenBatch(tuple(fed))


def _num_numbers(update: SequenceUpdate) -> int:
    return sum(map(_weight, update.tokens))


def _weight(token: CommittedToken) -> int:
    """Return the weight of a token: itself, its alternatives, and a vector by its size."""
    return 1 + len(token.top) + (len(token.vector) // _NUMBER_BYTES if token.vector else 0)


def _too_slow() -> CallError:
    return CallError("tokens arrived faster than the gateway read them")


def _as_potluck_error(error: Exception) -> PotluckError:
    if isinstance(error, PotluckError):
        return error
    return EngineError(f"the coordinator failed: {type(error).__name__}")


class SequenceCalls:
    """Answers these calls. For use in the agent's event loop."""

    def __init__(self, membership: Membership, coordination: Coordination) -> None:
        self._membership = membership
        self._coordination = coordination
        self._feeds: dict[str, TokenFeed] = {}

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        FEED.serve(methods, self._on_feed)
        START_SEQUENCE.serve(methods, self._on_start)
        STOP_SEQUENCE.serve(methods, self._on_stop)

    async def _on_feed(self, request: OpenFeed) -> AsyncGenerator[TokenBatch, None]:
        feed_id = request.feed_id
        if feed_id in self._feeds:
            raise CallError("a feed with that name already exists")
        feed = self._feeds[feed_id] = TokenFeed()
        try:
            async with aclosing(feed.parts()) as parts:
                async for part in parts:
                    yield part
        finally:
            del self._feeds[feed_id]
            feed.close()

    async def _on_start(self, request: StartSequence) -> StartAnswer:
        try:
            feed = self._feeds.get(request.feed_id)
            if feed is None:
                raise MovedError("the gateway's feed has ended", hint="try again in a moment")
            self._require_room()
            feed.start(request.number, partial(self._start, request))
        except PotluckError as error:
            return GenerateFailure.of(error)
        return Started()

    async def _on_stop(self, request: StopSequence) -> None:
        feed = self._feeds.get(request.feed_id)
        if feed is not None:
            feed.stop(request.number)

    def _start(self, request: StartSequence, on_update: OnUpdate) -> Cancel:
        generate = request.generate
        deployment = self._coordination.coordinated.get(generate.deployment)
        if deployment is not None:
            return deployment.start_sequence(generate.request, on_update, generate.continuation)
        record = self._coordination.records.get(generate.deployment)
        own = self._membership.node_id
        if record is None or record.epoch.coordinator == own or not request.may_relay:
            raise MovedError(
                "this node no longer coordinates the deployment", hint="try again in a moment"
            )

        def relayed(update: SequenceUpdate | Exception) -> None:
            if isinstance(update, CallError):  # the gateway tries another node
                update = MovedError(update.message, hint=update.hint)
            on_update(update)

        # It may not be relayed again: the gateway knows better which nodes see the coordinator.
        return self._coordination.remote.start(record.epoch.coordinator, generate, relayed)

    def _require_room(self) -> None:
        num_fed = sum(feed.num_live for feed in self._feeds.values())
        if num_fed >= _MAX_REMOTE_SEQUENCES:
            raise OverloadedError(
                f"node {self._membership.node_id} already computes {_MAX_REMOTE_SEQUENCES}"
                " sequences for other nodes",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
