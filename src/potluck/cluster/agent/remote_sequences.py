"""Sequences of this gateway that other nodes compute.

For each coordinator there is one feed: a call whose answer streams the updates of all of this
gateway's sequences there. A step that gives eight sequences a token each sends one message.
Starting and stopping a sequence are separate calls.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from contextlib import aclosing, suppress

from potluck.cluster.background import Background
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.methods import FEED, START_SEQUENCE, STOP_SEQUENCE
from potluck.cluster.wire.sequence_messages import (
    Generate,
    GenerateAnswer,
    GenerateFailure,
    OpenFeed,
    StartSequence,
    StopSequence,
)
from potluck.errors import CallError, MovedError
from potluck.types.cluster import NodeId
from potluck.types.sequence import Cancel, OnUpdate

_IDLE_SECONDS = 30.0
"""How long an unused feed is kept open: opening one takes a round trip."""


class RemoteSequences:
    """The remote sequences. For use in the agent's event loop."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._feeds: dict[NodeId, _Feed] = {}

    def start(
        self, node: NodeId, generate: Generate, on_update: OnUpdate, *, may_relay: bool = False
    ) -> Cancel:
        """Let ``node`` compute a sequence. Errors are passed to ``on_update``.

        It is the coordinator, or ``may_relay`` the sequence to a coordinator that this node cannot
        reach.
        """
        feed = self._feeds.get(node)
        if feed is None or feed.is_over:
            feed = self._feeds[node] = _Feed(self._membership, node, self._dropped)
        return feed.start(generate, on_update, may_relay=may_relay)

    def _dropped(self, feed: _Feed) -> None:
        if self._feeds.get(feed.node_id) is feed:
            del self._feeds[feed.node_id]


class _Feed:
    """The feed from one coordinator, until it is lost or has been idle."""

    def __init__(
        self, membership: Membership, node_id: NodeId, on_over: Callable[[_Feed], None]
    ) -> None:
        self.node_id = node_id
        self.is_over = False
        self._membership = membership
        self._on_over = on_over
        self._feed_id = secrets.token_hex(16)
        self._numbers = itertools.count(1)
        self._live: dict[int, OnUpdate] = {}
        self._opened = asyncio.Event()
        self._background = Background()
        self._idle: asyncio.TimerHandle | None = None
        self._reading = asyncio.ensure_future(self._read())

    def start(self, generate: Generate, on_update: OnUpdate, *, may_relay: bool) -> Cancel:
        """Start a sequence."""
        number = next(self._numbers)
        self._live[number] = on_update
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        self._background.spawn(self._ask_to_start(number, generate, may_relay=may_relay))

        def cancel() -> None:
            if self._forget(number) is not None:
                self._stop(number)

        return cancel

    def _stop(self, number: int) -> None:
        if not self.is_over:
            self._background.spawn(self._ask_to_stop(number))

    def _forget(self, number: int) -> OnUpdate | None:
        on_update = self._live.pop(number, None)
        if on_update is not None and not self._live and not self.is_over:
            loop = asyncio.get_running_loop()
            self._idle = loop.call_later(_IDLE_SECONDS, self._reading.cancel)
        return on_update

    async def _ask_to_start(self, number: int, generate: Generate, *, may_relay: bool) -> None:
        await self._opened.wait()
        if number not in self._live:
            return
        request = StartSequence(
            feed_id=self._feed_id, number=number, generate=generate, may_relay=may_relay
        )
        try:
            answer = await START_SEQUENCE.call(self._membership, self.node_id, request)
        except Exception as error:  # noqa: BLE001 - passed to the sequence
            self._end(number, error)
            self._stop(number)
            return
        if isinstance(answer, GenerateFailure):
            self._end(number, answer.error())
        elif number not in self._live:
            self._stop(number)  # cancelled before it was started

    async def _ask_to_stop(self, number: int) -> None:
        request = StopSequence(feed_id=self._feed_id, number=number)
        with suppress(CallError):  # it ends there with this feed
            await STOP_SEQUENCE.call(self._membership, self.node_id, request)

    async def _read(self) -> None:
        error: Exception = MovedError("the answer ended before its last token")
        try:
            request = OpenFeed(feed_id=self._feed_id)
            async with aclosing(FEED.call(self._membership, self.node_id, request)) as parts:
                async for part in parts:
                    self._opened.set()
                    for fed in part.fed:
                        self._take(fed.number, fed.given)
        except Exception as failure:  # noqa: BLE001 - passed to the sequences
            error = failure
        finally:
            self.is_over = True
            self._on_over(self)
            for number in tuple(self._live):
                self._end(number, error)
            self._opened.set()

    def _take(self, number: int, given: GenerateAnswer) -> None:
        on_update = self._live.get(number)
        if on_update is None:
            return  # cancelled; the coordinator will be told
        if isinstance(given, GenerateFailure):
            self._end(number, given.error())
            return
        if given.tokens[-1].finish_reason is not None:
            self._forget(number)
        on_update(given)

    def _end(self, number: int, error: Exception) -> None:
        on_update = self._forget(number)
        if on_update is not None:
            on_update(error)
