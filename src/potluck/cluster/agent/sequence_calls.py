"""Sequences of other gateways, computed by the coordinator here, or relayed to a coordinator that
they cannot reach.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.token_feed import TokenFeed
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.methods import FEED, START_SEQUENCE, STOP_SEQUENCE
from potluck.cluster.sequence_messages import (
    Feed,
    GenerateFailure,
    OpenFeed,
    StartAnswer,
    Started,
    StartSequence,
    StopSequence,
)
from potluck.errors import CallError, MovedError, OverloadedError, PotluckError
from potluck.types.sequence import Cancel, OnUpdate, SequenceUpdate

_MAX_REMOTE_SEQUENCES = 192
"""The most sequences of other gateways, those that are relayed included."""

_RETRY_AFTER_SECONDS = 5


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

    async def _on_feed(self, request: OpenFeed) -> AsyncGenerator[Feed, None]:
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
