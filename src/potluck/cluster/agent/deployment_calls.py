"""Calls about deployments: records, requests to coordinators, and the stages of this node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.stages import StageHost
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.background import cancel_all, is_done_within
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import (
    AskCoordinatorView,
    AskMetrics,
    AskRebalance,
    Claim,
    ClaimAnswer,
    ContinueWithout,
    CoordinatorView,
    DeploymentReference,
    Moving,
    RebalanceAnswer,
    RetireDeployment,
    StageLost,
    Stalled,
    StartEvent,
    unpack_record,
)
from potluck.cluster.wire.methods import (
    ABANDON_STAGE,
    CHECK_STAGES,
    CLAIM,
    CONNECT_STAGE,
    CONTINUE_WITHOUT,
    COORDINATOR_VIEW,
    END_STAGES,
    METRICS,
    PUT,
    REBALANCE,
    RELEASE_STAGES,
    REMOVE,
    RETIRE,
    STAGE_LOST,
    STAGE_STATS,
    START_STAGE,
    STOP_STAGES,
    TAKE_OVER,
)
from potluck.cluster.wire.worker_messages import StageSpec
from potluck.errors import CallError, MovedError, StalledError
from potluck.types.gateway import ModelMetrics

_TELL_SECONDS = 2.0
"""The interval at which callers that wait for a move learn that it is still running."""


class DeploymentCalls:
    """Answers calls about the deployments that this node coordinates or knows of. For the agent's
    loop.
    """

    def __init__(self, coordination: Coordination, takeovers: Takeovers) -> None:
        self._coordination = coordination
        self._takeovers = takeovers

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        STAGE_LOST.serve(methods, self._on_stage_lost)
        PUT.serve(methods, self._on_put)
        REMOVE.serve(methods, self._on_remove)
        RETIRE.serve(methods, self._on_retire)
        CONTINUE_WITHOUT.serve(methods, self._on_continue_without)
        METRICS.serve(methods, self._on_metrics)
        CLAIM.serve(methods, self._on_claim)
        COORDINATOR_VIEW.serve(methods, self._on_coordinator_view)
        TAKE_OVER.serve(methods, self._on_take_over)
        REBALANCE.serve(methods, self._on_rebalance)

    async def _on_stage_lost(self, lost: StageLost) -> None:
        deployment = self._coordination.coordinated.get(lost.deployment)
        if deployment is not None:
            deployment.stage_lost(lost)

    async def _on_put(self, packed: bytes) -> None:
        self._coordination.records.learn(unpack_record(packed))

    async def _on_remove(self, request: DeploymentReference) -> None:
        await self._coordination.remove(request.deployment)

    async def _on_retire(self, request: RetireDeployment) -> None:
        await self._coordination.retire(request.deployment, request.name)

    async def _on_continue_without(self, request: ContinueWithout) -> None:
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is not None:
            await deployment.continue_without(request.node_id)
        elif self._coordination.records.is_live(request.deployment):
            raise MovedError("this node no longer coordinates the deployment")

    async def _on_metrics(self, request: AskMetrics) -> ModelMetrics | None:
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            return None
        return await deployment.metrics(max_age_seconds=request.max_age_seconds)

    async def _on_claim(self, request: Claim) -> ClaimAnswer:
        return self._coordination.records.claimed(request)

    async def _on_coordinator_view(self, request: AskCoordinatorView) -> CoordinatorView:
        return self._takeovers.view(request)

    async def _on_take_over(self, request: DeploymentReference) -> None:
        await self._takeovers.succeed(request.deployment)

    async def _on_rebalance(self, request: AskRebalance) -> AsyncGenerator[RebalanceAnswer, None]:
        """Move a deployment; the move continues even if the caller disconnects."""
        deployment = self._coordination.coordinated.get(request.deployment)
        if deployment is None:
            raise MovedError(
                "this node no longer coordinates the deployment", hint="try again in a moment"
            )
        asking = asyncio.ensure_future(deployment.rebalance(is_dry_run=request.is_dry_run))
        try:
            while not await is_done_within(asking, _TELL_SECONDS):
                yield Moving()
            yield await asking
        finally:
            await cancel_all([asking])


async def report_lost(membership: Membership, lost: StageLost) -> None:
    """Tell the coordinator that a stage of this node exited unexpectedly."""
    with suppress(CallError):  # the coordinator itself is lost: its successor makes a new plan
        await STAGE_LOST.call(membership, lost.epoch.coordinator, lost)


def serve_stages(stages: StageHost, table: MethodTable) -> None:
    """Answer calls about the stages, in the agent's event loop."""

    async def start(spec: StageSpec) -> AsyncGenerator[StartEvent, None]:
        try:
            async with aclosing(stages.start(spec)) as events:
                async for event in events:
                    yield event
        except StalledError as error:
            yield Stalled(message=error.message)

    START_STAGE.serve(table, start)
    CONNECT_STAGE.serve(table, stages.connect)
    STOP_STAGES.serve(table, stages.stop)
    END_STAGES.serve(table, stages.end)
    RELEASE_STAGES.serve(table, stages.release)
    STAGE_STATS.serve(table, stages.hosted.stats)
    CHECK_STAGES.serve(table, stages.hosted.check)
    ABANDON_STAGE.serve(table, stages.hosted.abandon)
