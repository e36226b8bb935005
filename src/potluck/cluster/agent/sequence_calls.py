"""Sequences of other gateways, computed by the coordinator here, or relayed to a coordinator that
they cannot reach (``deployment.relay``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.token_feed import TokenFeed, in_parts, updates_of
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.methods import FEED, GENERATE, RELAY, START_SEQUENCE, STOP_SEQUENCE
from potluck.cluster.sequence_messages import (
    Feed,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    OpenFeed,
    StartAnswer,
    Started,
    StartSequence,
    StopSequence,
)
from potluck.errors import CallError, MovedError, OverloadedError, PotluckError
from potluck.types.sequence import Cancel, OnUpdate

_MAX_REMOTE_SEQUENCES = 192
"""The most sequences of other gateways. Each relayed one uses one of the calls that a node answers
at one time (``membership.server.MAX_RUNNING_CALLS``); the rest are for control."""

_RETRY_AFTER_SECONDS = 5


class SequenceCalls:
    """Answers these calls. For use in the agent's event loop."""

    def __init__(self, membership: Membership, coordination: Coordination) -> None:
        self._membership = membership
        self._coordination = coordination
        self._feeds: dict[str, TokenFeed] = {}
        self._num_streamed = 0

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        FEED.serve(methods, self._on_feed)
        START_SEQUENCE.serve(methods, self._on_start)
        STOP_SEQUENCE.serve(methods, self._on_stop)
        GENERATE.serve(methods, self._on_generate)
        RELAY.serve(methods, self._on_relay)

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
            feed.start(request.number, partial(self._start, request.generate))
        except PotluckError as error:
            return GenerateFailure.of(error)
        return Started()

    async def _on_stop(self, request: StopSequence) -> None:
        feed = self._feeds.get(request.feed_id)
        if feed is not None:
            feed.stop(request.number)

    def _start(self, generate: Generate, on_update: OnUpdate) -> Cancel:
        deployment = self._coordination.coordinated.get(generate.deployment)
        if deployment is None:
            raise MovedError(
                "this node no longer coordinates the deployment", hint="try again in a moment"
            )
        return deployment.start_sequence(generate.request, on_update, generate.continuation)

    async def _on_generate(self, generate: Generate) -> AsyncGenerator[GenerateAnswer, None]:
        self._num_streamed += 1
        try:
            self._require_room()
            async with aclosing(updates_of(partial(self._start, generate))) as updates:
                async for update in updates:
                    for part in in_parts(update):
                        yield part
        except PotluckError as error:
            yield GenerateFailure.of(error)
        finally:
            self._num_streamed -= 1

    async def _on_relay(self, generate: Generate) -> AsyncGenerator[GenerateAnswer, None]:
        """Relay a request to the coordinator, for a gateway that cannot reach it.

        A request is never relayed twice: this node asks the coordinator itself, and if that fails
        the gateway tries another node.
        """
        record = self._coordination.records.get(generate.deployment)
        if generate.deployment in self._coordination.coordinated or record is None:
            async with aclosing(self._on_generate(generate)) as answers:
                async for answer in answers:
                    yield answer
            return
        self._num_streamed += 1
        try:
            self._require_room()
            stream = GENERATE.call(self._membership, record.epoch.coordinator, generate)
            async with aclosing(stream):
                async for answer in stream:
                    yield answer
        except CallError as error:
            yield GenerateFailure.of(MovedError(error.message, hint=error.hint))
        except PotluckError as error:
            yield GenerateFailure.of(error)
        finally:
            self._num_streamed -= 1

    def _require_room(self) -> None:
        num_fed = sum(feed.num_live for feed in self._feeds.values())
        if self._num_streamed + num_fed > _MAX_REMOTE_SEQUENCES:
            raise OverloadedError(
                f"node {self._membership.node_id} already computes {_MAX_REMOTE_SEQUENCES}"
                " sequences for other nodes",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
