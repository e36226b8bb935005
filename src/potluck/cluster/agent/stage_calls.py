"""Calls of coordinators about the stages that this node computes, and to them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from potluck.cluster.agent.stages import StageHost
from potluck.cluster.calls import StageLost, Stalled, StartEvent
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.methods import (
    ABANDON_STAGE,
    CHECK_STAGES,
    CONNECT_STAGE,
    END_STAGES,
    RELEASE_STAGES,
    STAGE_LOST,
    STAGE_STATS,
    START_STAGE,
    STOP_STAGES,
)
from potluck.cluster.worker.messages import StageSpec
from potluck.errors import CallError, StalledError


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
    STAGE_STATS.serve(table, stages.stats)
    CHECK_STAGES.serve(table, stages.check)
    ABANDON_STAGE.serve(table, stages.abandon)
