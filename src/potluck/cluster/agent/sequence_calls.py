"""Sequences of other gateways, computed by the coordinator here (``deployment.generate``), or by
one that only this node reaches (``deployment.relay``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.token_batches import in_batches
from potluck.cluster.calls import (
    Generate,
    GenerateFailure,
    Tokens,
    decode,
    encode,
)
from potluck.cluster.membership import Membership, MethodTable
from potluck.errors import CallError, MovedError, OverloadedError, PotluckError
from potluck.types.sequence import CommittedToken

_MAX_REMOTE_SEQUENCES = 192
"""That other gateways stream from here: the rest of the calls that a node answers at a time
(``membership.server.MAX_RUNNING_CALLS``) is for control."""

_RETRY_AFTER_SECONDS = 5


class SequenceCalls:
    """For use in the agent's loop."""

    def __init__(self, membership: Membership, coordination: Coordination) -> None:
        self._membership = membership
        self._coordination = coordination
        self._num_remote_sequences = 0

    def register(self, methods: MethodTable) -> None:
        """Have the calls answered."""
        methods.register_stream("deployment.generate", self._on_generate)
        methods.register_stream("deployment.relay", self._on_relay)

    async def _on_generate(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        request = decode(payload, Generate)
        self._num_remote_sequences += 1
        try:
            stream = self._generate_for_another(request)
            async with aclosing(in_batches(stream, len(request.request.prompt_tokens))) as batches:
                async for tokens in batches:
                    yield encode(Tokens(tokens=tokens))
        except PotluckError as error:
            yield encode(GenerateFailure.of(error))
        finally:
            self._num_remote_sequences -= 1

    async def _generate_for_another(
        self, request: Generate
    ) -> AsyncGenerator[CommittedToken, None]:
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            raise MovedError(
                "the deployment is not coordinated here any more", hint="try again in a moment"
            )
        self._require_room()
        async with aclosing(deployment.generate(request.request, request.continuation)) as stream:
            async for token in stream:
                yield token

    async def _on_relay(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Pass a request on to the coordinator, for a gateway that cannot reach it.

        This is never done twice for a request: the coordinator itself is asked, and if that is not
        possible, the gateway looks for another way.
        """
        request = decode(payload, Generate)
        record = self._coordination.registry.records.get(request.deployment)
        if request.deployment in self._coordination.coordinated or record is None:
            async with aclosing(self._on_generate(payload)) as answers:
                async for answer in answers:
                    yield answer
            return
        self._num_remote_sequences += 1
        try:
            self._require_room()
            stream = self._membership.call_stream(
                record.epoch.coordinator, "deployment.generate", payload
            )
            async with aclosing(stream):
                async for part in stream:
                    yield part
        except CallError as error:
            yield encode(GenerateFailure.of(MovedError(error.message, hint=error.hint)))
        except PotluckError as error:
            yield encode(GenerateFailure.of(error))
        finally:
            self._num_remote_sequences -= 1

    def _require_room(self) -> None:
        if self._num_remote_sequences > _MAX_REMOTE_SEQUENCES:
            raise OverloadedError(
                f"node {self._membership.node_id} already answers {_MAX_REMOTE_SEQUENCES}"
                " sequences of others",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
