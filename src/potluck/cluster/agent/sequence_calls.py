"""Sequences of this node's clients, computed by a coordinator here or elsewhere; and those of
other gateways, computed here: ``deployment.generate``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.token_batches import in_batches
from potluck.cluster.calls import (
    DeploymentRecord,
    Generate,
    GenerateAnswer,
    GenerateFailure,
    Tokens,
    decode,
    encode,
)
from potluck.cluster.membership import Membership, MethodTable
from potluck.errors import EngineError, NodeLostError, OverloadedError, PotluckError
from potluck.types.sequence import CommittedToken, SequenceRequest

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

    async def generate(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        """Compute a sequence with the coordinator, here or elsewhere."""
        deployment = self._coordination.coordinated.get(record.deployment)
        if deployment is not None:
            stream = deployment.generate(request)
        else:
            stream = self._generate_elsewhere(record, request)
        async with aclosing(stream):
            async for token in stream:
                yield token

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
        if deployment is None or self._coordination.is_draining:
            raise EngineError(
                "the deployment is not coordinated here any more", hint="try again in a moment"
            )
        if self._num_remote_sequences > _MAX_REMOTE_SEQUENCES:
            raise OverloadedError(
                f"node {self._membership.node_id} already answers {_MAX_REMOTE_SEQUENCES}"
                " sequences of others",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        async with aclosing(deployment.generate(request.request)) as stream:
            async for token in stream:
                yield token

    async def _generate_elsewhere(
        self, record: DeploymentRecord, request: SequenceRequest
    ) -> AsyncGenerator[CommittedToken, None]:
        payload = encode(Generate(deployment=record.deployment, request=request))
        stream = self._membership.call_stream(
            record.epoch.coordinator, "deployment.generate", payload
        )
        async with aclosing(stream):
            try:
                async for part in stream:
                    answer: GenerateAnswer = decode(part, GenerateAnswer)
                    if isinstance(answer, GenerateFailure):
                        raise answer.error()
                    for token in answer.tokens:
                        yield token
            except NodeLostError as error:
                raise EngineError(
                    f"the node that schedules {record.model_id} was lost",
                    hint="send the request again: another node takes over",
                ) from error
