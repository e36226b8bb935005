"""Calls about deployments: their records, and what their coordinators are told and asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.calls import (
    AskOutlook,
    AskRebalance,
    Claim,
    DeploymentRecord,
    Moving,
    Named,
    StageLost,
    Vacate,
    decode,
    encode,
)
from potluck.cluster.membership import MethodTable
from potluck.errors import MovedError

_TELL_SECONDS = 2.0
"""Those who wait for a move are told so often that it goes on."""


class DeploymentCalls:
    """Answers for what this node coordinates, or knows of. For use in the agent's loop."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def register(self, methods: MethodTable) -> None:
        """Have the calls answered."""
        methods.register("stage.lost", self._on_stage_lost)
        methods.register("deployment.put", self._on_put)
        methods.register("deployment.remove", self._on_remove)
        methods.register("deployment.vacate", self._on_vacate)
        methods.register("deployment.metrics", self._on_metrics)
        methods.register("deployment.claim", self._on_claim)
        methods.register("deployment.outlook", self._on_outlook)
        methods.register("deployment.take_over", self._on_take_over)
        methods.register_stream("deployment.rebalance", self._on_rebalance)

    async def _on_stage_lost(self, payload: bytes) -> bytes:
        lost = decode(payload, StageLost)
        deployment = self._coordination.coordinated.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)
        return b""

    async def _on_put(self, payload: bytes) -> bytes:
        self._coordination.heard(decode(payload, DeploymentRecord))
        return b""

    async def _on_remove(self, payload: bytes) -> bytes:
        await self._coordination.remove(decode(payload, Named).deployment)
        return b""

    async def _on_vacate(self, payload: bytes) -> bytes:
        request = decode(payload, Vacate)
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is not None:
            await deployment.vacate(request.node_id)
        elif self._coordination.is_live(request.deployment):
            raise MovedError("the deployment is not coordinated here any more")
        return b""

    async def _on_metrics(self, payload: bytes) -> bytes:
        deployment = self._coordination.coordinated.get(decode(payload, Named).deployment)
        return encode(None if deployment is None else await deployment.metrics())

    async def _on_claim(self, payload: bytes) -> bytes:
        return encode(self._coordination.claimed(decode(payload, Claim)))

    async def _on_outlook(self, payload: bytes) -> bytes:
        return encode(self._coordination.outlook(decode(payload, AskOutlook)))

    async def _on_take_over(self, payload: bytes) -> bytes:
        await self._coordination.succeed(decode(payload, Named).deployment)
        return b""

    async def _on_rebalance(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        """A move goes on when nobody waits for it any more."""
        request = decode(payload, AskRebalance)
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            raise MovedError(
                "the deployment is not coordinated here any more", hint="try again in a moment"
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
