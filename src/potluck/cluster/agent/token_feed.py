"""Batches the updates of sequences for one gateway.

A message of a feed is built when the one before it has been sent. Updates that arrive in the
meantime, of any sequence, go into the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator

from potluck.cluster.sequence_messages import Feed, FeedUpdate, GenerateFailure
from potluck.errors import CallError, EngineError, PotluckError
from potluck.types.sequence import Cancel, CommittedToken, OnUpdate, SequenceUpdate

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
    """The feed of one gateway. For use in the event loop."""

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

    async def parts(self) -> AsyncGenerator[Feed, None]:
        """Yield batches of updates; the first is empty, which says that the feed is open.

        Raises ``CallError`` if more than ``MAX_WAITING_NUMBERS`` are waiting.
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


def _in_feeds(waiting: list[tuple[int, SequenceUpdate | GenerateFailure]]) -> Iterator[Feed]:
    fed: list[FeedUpdate] = []
    count = 0
    for number, given in waiting:
        if isinstance(given, GenerateFailure):
            fed.append(FeedUpdate(number, given))
            continue
        for part in _in_parts(given):
            here = _num_numbers(part)
            if fed and count + here > MAX_PART_NUMBERS:
                yield Feed(tuple(fed))
                fed, count = [], 0
            fed.append(FeedUpdate(number, part))
            count += here
    if fed:
        yield Feed(tuple(fed))


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
