"""Updates of sequences on their way to one gateway: those that come together go together.

A part of a feed is made when the one before it is on its way. What comes meanwhile, of any
sequence, goes with the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator

from potluck.cluster.sequence_messages import Fed, Feed, GenerateFailure, Tokens
from potluck.errors import CallError, EngineError, PotluckError
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceUpdate

MAX_PART_NUMBERS = 8192
"""Tokens and alternatives in a part: some 150 KB, far below what a message may have."""

_NUMBER_BYTES = 20
"""Of a token or an alternative on its way, about."""

MAX_WAITING_NUMBERS = 1 << 18
"""Of a gateway that takes them more slowly than they are computed: some tens of megabytes."""

Start = Callable[[OnUpdate], Cancel]
"""Starts a sequence, and raises what keeps it from that."""


class TokenFeed:
    """Of one gateway. For use in the event loop."""

    def __init__(self) -> None:
        self._live: dict[int, Cancel] = {}
        self._waiting: list[tuple[int, SequenceUpdate | GenerateFailure]] = []
        self._num_waiting_numbers = 0
        self._has_overflowed = False
        self._arrival = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Sequences that are being computed."""
        return len(self._live)

    def start(self, number: int, start: Start) -> None:
        """Start a sequence that the gateway calls ``number``. Raises as ``start`` does."""
        if number in self._live:
            raise CallError(f"there is a sequence {number} already")
        if self._has_overflowed:
            raise _too_slow()

        def on_update(update: SequenceUpdate | Exception) -> None:
            self._take(number, update)

        self._live[number] = start(on_update)

    def stop(self, number: int) -> None:
        """Cancel a sequence; one that is not live is accepted."""
        cancel = self._live.pop(number, None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """Cancel all sequences."""
        for number in tuple(self._live):
            self.stop(number)

    async def parts(self) -> AsyncGenerator[Feed, None]:
        """What there is, again and again; at first nothing, which says that the feed is open.

        Raises ``CallError`` after more than ``MAX_WAITING_NUMBERS`` have waited.
        """
        yield Feed()
        while True:
            await self._arrival.wait()
            self._arrival.clear()
            if self._has_overflowed:
                raise _too_slow()
            waiting, self._waiting = self._waiting, []
            self._num_waiting_numbers = 0
            for part in _in_feeds(waiting):
                yield part

    def _take(self, number: int, update: SequenceUpdate | Exception) -> None:
        if isinstance(update, Exception):
            self._live.pop(number, None)
            self._waiting.append((number, GenerateFailure.of(_tellable(update))))
        else:
            if update.tokens[-1].finish_reason is not None:
                self._live.pop(number, None)
            self._waiting.append((number, update))
            self._num_waiting_numbers += _num_numbers(update)
        self._arrival.set()
        if self._num_waiting_numbers > MAX_WAITING_NUMBERS:
            # Now, because whoever iterates over the parts may wait for the gateway for long.
            self._has_overflowed = True
            self._waiting.clear()
            self._num_waiting_numbers = 0
            self.close()


def in_parts(update: SequenceUpdate) -> Iterator[SequenceUpdate]:
    """Cut an update so that each part fits in a message."""
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


async def updates_of(start: Start) -> AsyncGenerator[SequenceUpdate, None]:
    """The updates of one sequence; closed, it cancels the sequence. Raises what ends it."""
    updates: asyncio.Queue[SequenceUpdate | Exception] = asyncio.Queue()
    cancel = start(updates.put_nowait)
    try:
        while True:
            update = await updates.get()
            if isinstance(update, Exception):
                raise update
            yield update
            if update.tokens[-1].finish_reason is not None:
                return
    finally:
        cancel()


def _in_feeds(waiting: list[tuple[int, SequenceUpdate | GenerateFailure]]) -> Iterator[Feed]:
    fed: list[Fed] = []
    count = 0
    for number, given in waiting:
        if isinstance(given, GenerateFailure):
            fed.append(Fed(number, given))
            continue
        for part in in_parts(given):
            here = _num_numbers(part)
            if fed and count + here > MAX_PART_NUMBERS:
                yield Feed(tuple(fed))
                fed, count = [], 0
            fed.append(Fed(number, Tokens.of(part)))
            count += here
    if fed:
        yield Feed(tuple(fed))


def _num_numbers(update: SequenceUpdate) -> int:
    return sum(map(_weight, update.tokens))


def _weight(token: CommittedToken) -> int:
    """What a token counts: itself, its alternatives, and a vector by its size."""
    return 1 + len(token.top) + (len(token.vector) // _NUMBER_BYTES if token.vector else 0)


def _too_slow() -> CallError:
    return CallError("tokens came faster than the gateway took them")


def _tellable(error: Exception) -> PotluckError:
    if isinstance(error, PotluckError):
        return error
    return EngineError(f"the coordinator failed: {type(error).__name__}")
