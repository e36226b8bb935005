"""Calls about deployments: their records, and requests to their coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.calls import (
    AskCoordinatorView,
    AskMetrics,
    AskRebalance,
    Claim,
    ContinueWithout,
    DeploymentReference,
    Moving,
    RetireDeployment,
    StageLost,
    decode,
    encode,
    unpack_record,
)
from potluck.cluster.membership import MethodTable
from potluck.errors import MovedError

_TELL_SECONDS = 2.0
"""How often callers that wait for a move are told that it is still running."""


class DeploymentCalls:
    """Answers calls about the deployments that this node coordinates or knows of. For the agent's
    loop.
    """

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        methods.register("stage.lost", self._on_stage_lost)
        methods.register("deployment.put", self._on_put)
        methods.register("deployment.remove", self._on_remove)
        methods.register("deployment.retire", self._on_retire)
        methods.register("deployment.continue_without", self._on_continue_without)
        methods.register("deployment.metrics", self._on_metrics)
        methods.register("deployment.claim", self._on_claim)
        methods.register("deployment.coordinator_view", self._on_coordinator_view)
        methods.register("deployment.take_over", self._on_take_over)
        methods.register_stream("deployment.rebalance", self._on_rebalance)

    async def _on_stage_lost(self, payload: bytes) -> bytes:
        lost = decode(payload, StageLost)
        deployment = self._coordination.coordinated.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)
        return b""

    async def _on_put(self, payload: bytes) -> bytes:
        self._coordination.learn(unpack_record(payload))
        return b""

    async def _on_remove(self, payload: bytes) -> bytes:
        await self._coordination.remove(decode(payload, DeploymentReference).deployment)
        return b""

    async def _on_retire(self, payload: bytes) -> bytes:
        request = decode(payload, RetireDeployment)
        await self._coordination.retire(request.deployment, request.name)
        return b""

    async def _on_continue_without(self, payload: bytes) -> bytes:
        request = decode(payload, ContinueWithout)
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is not None:
            await deployment.continue_without(request.node_id)
        elif self._coordination.is_live(request.deployment):
            raise MovedError("this node no longer coordinates the deployment")
        return b""

    async def _on_metrics(self, payload: bytes) -> bytes:
        request = decode(payload, AskMetrics)
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            return encode(None)
        return encode(await deployment.metrics(max_age_seconds=request.max_age_seconds))

    async def _on_claim(self, payload: bytes) -> bytes:
        return encode(self._coordination.claimed(decode(payload, Claim)))

    async def _on_coordinator_view(self, payload: bytes) -> bytes:
        return encode(self._coordination.coordinator_view(decode(payload, AskCoordinatorView)))

    async def _on_take_over(self, payload: bytes) -> bytes:
        await self._coordination.succeed(decode(payload, DeploymentReference).deployment)
        return b""

    async def _on_rebalance(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """Move a deployment; the move continues even if the caller disconnects."""
        request = decode(payload, AskRebalance)
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            raise MovedError(
                "this node no longer coordinates the deployment", hint="try again in a moment"
            )
        asking = asyncio.ensure_future(deployment.rebalance(is_dry_run=request.is_dry_run))
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=_TELL_SECONDS)
                if not asking.done():
                    yield encode(Moving())
            yield encode(await asking)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
