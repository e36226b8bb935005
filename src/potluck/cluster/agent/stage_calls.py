"""Calls of coordinators about the stages that this node computes: ``stage.*``, except
``stage.lost``, which goes in the other direction.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from potluck.cluster.agent.stages import StageHost
from potluck.cluster.calls import (
    AbandonStage,
    ConnectStage,
    ReleaseStages,
    StageLost,
    StageScope,
    Stalled,
    decode,
    encode,
)
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.worker.messages import StageSpec
from potluck.errors import CallError, StalledError


async def report_lost(membership: Membership, lost: StageLost) -> None:
    """Tell the coordinator that a stage of this node exited unexpectedly."""
    with suppress(CallError):  # the coordinator itself is lost: its successor makes a new plan
        await membership.call(lost.epoch.coordinator, "stage.lost", encode(lost))


class StageCalls:
    """Answers calls about the stages. For use in the agent's event loop."""

    def __init__(self, stages: StageHost) -> None:
        self._stages = stages

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        methods.register_stream("stage.start", self._on_start)
        methods.register("stage.connect", self._on_connect)
        methods.register("stage.stop", self._on_stop)
        methods.register("stage.end", self._on_end)
        methods.register("stage.release", self._on_release)
        methods.register("stage.stats", self._on_stats)
        methods.register("stage.check", self._on_check)
        methods.register("stage.abandon", self._on_abandon)

    async def _on_start(self, payload: bytes) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(self._stages.start(decode(payload, StageSpec))) as events:
                async for event in events:
                    yield encode(event)
        except StalledError as error:
            yield encode(Stalled(message=error.message))

    async def _on_connect(self, payload: bytes) -> bytes:
        await self._stages.connect(decode(payload, ConnectStage))
        return b""

    async def _on_stop(self, payload: bytes) -> bytes:
        return encode(await self._stages.stop(decode(payload, StageScope)))

    async def _on_end(self, payload: bytes) -> bytes:
        return encode(await self._stages.end(decode(payload, StageScope)))

    async def _on_release(self, payload: bytes) -> bytes:
        await self._stages.release(decode(payload, ReleaseStages))
        return b""

    async def _on_stats(self, payload: bytes) -> bytes:
        return encode(await self._stages.stats(decode(payload, StageScope)))

    async def _on_check(self, payload: bytes) -> bytes:
        return encode(await self._stages.check(decode(payload, StageScope)))

    async def _on_abandon(self, payload: bytes) -> bytes:
        await self._stages.abandon(decode(payload, AbandonStage))
        return b""
