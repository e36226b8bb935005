"""When a step is overdue, find out whether every stage still makes progress.

A step may be late because it is large, or because a machine is busy with other work. The nodes of
the stages can tell; a stage is lost only if its own node reports that its worker is stopped or has
made no progress for a while, or if the node does not answer. ``Evidence`` decides and is pure.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from potluck.cluster.background import Background
from potluck.cluster.coordinator.excluded_units import StageStalledError
from potluck.cluster.coordinator.pipeline import OverdueStep
from potluck.cluster.network.edges.options import STALL_SECONDS
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import AbandonStage, StageCheck, StageScope
from potluck.cluster.wire.methods import ABANDON_STAGE, CHECK_STAGES
from potluck.errors import EngineError, PotluckError
from potluck.types.deployment import DeploymentRecord
from potluck.types.quantities import format_seconds
from potluck.types.step import StepId

_log = logging.getLogger(__name__)

IDLE_SECONDS = 15.0
"""The maximum time without progress of a stage that is not known to be stopped: a disk with mapped
weights takes some ten seconds to spin up."""

SILENT_SECONDS = 10.0
"""The maximum time without an answer of a node that is still a member."""

NOWHERE_SECONDS = float(STALL_SECONDS)
"""The maximum time while no stage computes or sends: the step may be in transit between two of
them."""

_AGAIN_SECONDS = 0.25
"""The interval for asking stages again that gave reason for doubt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The conclusion from the answers so far.

    ``reason`` is empty while nothing is lost. ``index`` is the lost stage, if known; ``is_frozen``:
    its worker is alive but hangs. If ``is_doubtful``, ask again soon.
    """

    reason: str = ""
    index: int | None = None
    is_frozen: bool = False
    is_doubtful: bool = False


class Evidence:
    """Reports of nodes about their stages while one step is awaited. Times are in seconds.

    Doubt starts with the first answer that gave reason for it: nobody has asked before that.
    """

    def __init__(self, num_stages: int) -> None:
        self._num_stages = num_stages
        self._idle_since: dict[int, float] = {}
        self._silent_since: dict[int, float] = {}
        self._nowhere_since: float | None = None

    def verdict(
        self,
        checks: Mapping[int, StageCheck | None],
        now: float,
        *,
        waited_seconds: float,
        limit_seconds: float,
        is_being_sent: bool = False,
    ) -> Verdict:
        """Evaluate the latest answers.

        An answer is None for a stage whose worker is gone; a stage whose node did not answer has
        none.
        """
        for index in range(self._num_stages):
            if index not in checks:
                seconds = now - self._silent_since.setdefault(index, now)
                if seconds >= SILENT_SECONDS:
                    duration = format_seconds(seconds)
                    return Verdict(reason=f"its node has not answered for {duration}", index=index)
                continue
            self._silent_since.pop(index, None)
            check = checks[index]
            if check is None:
                return Verdict(reason="its worker has ended", index=index)
            if check.has_progress:
                self._idle_since.pop(index, None)
                continue
            if check.is_stopped:
                reason = "its worker was stopped by a signal or a debugger"
                return Verdict(reason=reason, index=index, is_frozen=True)
            seconds = now - self._idle_since.setdefault(index, now)
            if seconds >= IDLE_SECONDS:
                what = "has been busy without progress" if check.answers else "has not answered"
                reason = f"its worker {what} for {format_seconds(seconds)}"
                return Verdict(reason=reason, index=index, is_frozen=True)
        return self._as_a_whole(
            {index: check for index, check in checks.items() if check is not None},
            now,
            is_doubtful=bool(self._silent_since or self._idle_since),
            is_being_sent=is_being_sent,
            waited_seconds=waited_seconds,
            limit_seconds=limit_seconds,
        )

    def _as_a_whole(
        self,
        checks: Mapping[int, StageCheck],
        now: float,
        *,
        is_doubtful: bool,
        is_being_sent: bool,
        waited_seconds: float,
        limit_seconds: float,
    ) -> Verdict:
        """Handle the case in which no single stage is to blame, but the step may be lost or too
        slow.
        """
        if is_being_sent or is_doubtful or any(map(_is_at_work, checks.values())):
            self._nowhere_since = None
        elif self._nowhere_since is None:
            self._nowhere_since = now
        elif now - self._nowhere_since >= NOWHERE_SECONDS:
            return Verdict(reason="a step was lost: no stage is computing it")
        if waited_seconds < limit_seconds:
            return Verdict(is_doubtful=is_doubtful)
        waited = format_seconds(waited_seconds)
        busy = {index: check.busy_seconds for index, check in checks.items() if check.busy_seconds}
        if not busy:
            return Verdict(reason=f"a step took longer than {waited}")
        slowest = max(busy, key=lambda index: busy[index])
        reason = f"it has spent {format_seconds(busy[slowest])} on a step that took {waited}"
        return Verdict(reason=reason, index=slowest, is_frozen=True)


def _is_at_work(check: StageCheck) -> bool:
    return not check.answers or check.busy_seconds > 0 or check.sending_seconds > 0


async def ask_stages(
    membership: Membership, record: DeploymentRecord
) -> dict[int, StageCheck | None]:
    """Ask the nodes of all stages; for the answers see ``Evidence.verdict``."""
    scope = StageScope(deployment=record.deployment, epoch=record.epoch)
    nodes = {stage.node_id for stage in record.stages}
    answers = await CHECK_STAGES.call_all(membership, dict.fromkeys(nodes, scope))
    return {
        index: answers[stage.node_id].stages.get(index)
        for index, stage in enumerate(record.stages)
        if stage.node_id in answers
    }


class OverdueSteps:
    """Finds out, in the agent's loop, why steps of one epoch are overdue.

    ``on_lost`` is called in the loop, at most once, with the reason why the epoch is over: a
    ``StageStalledError`` if a worker is to blame, which is then killed.
    """

    def __init__(
        self,
        membership: Membership,
        record: DeploymentRecord,
        on_lost: Callable[[PotluckError], None],
    ) -> None:
        """For use in the loop; ``record`` is that of the epoch, with its stages."""
        self._membership = membership
        self._record = record
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._background = Background("could not find out why a step is overdue")
        self._task: asyncio.Task[None] | None = None
        self._step_id: StepId | None = None
        self._evidence = Evidence(len(record.stages))
        self._is_lost = False

    def ask(self, overdue: OverdueStep) -> None:
        """Handle an overdue step. From any thread; returns immediately."""
        with suppress(RuntimeError):  # the loop is closed, and everything else with it
            self._loop.call_soon_threadsafe(self._begin, overdue, self._loop.time())

    def _begin(self, overdue: OverdueStep, reported_at: float) -> None:
        if self._is_lost or (self._task is not None and not self._task.done()):
            return
        if overdue.step_id != self._step_id:
            self._step_id = overdue.step_id
            self._evidence = Evidence(len(self._record.stages))
        self._task = self._background.spawn(self._find_out(overdue, reported_at))

    async def _find_out(self, overdue: OverdueStep, reported_at: float) -> None:
        """Keep asking until there is no doubt, the step has completed, or something is lost."""
        while overdue.is_awaited():
            checks = await ask_stages(self._membership, self._record)
            if not overdue.is_awaited():
                return
            now = self._loop.time()
            verdict = self._evidence.verdict(
                checks,
                now,
                waited_seconds=overdue.waited_seconds + now - reported_at,
                limit_seconds=overdue.limit_seconds,
                is_being_sent=overdue.is_being_sent,
            )
            if verdict.reason:
                await self._lose(verdict)
                return
            if not verdict.is_doubtful:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _lose(self, verdict: Verdict) -> None:
        self._is_lost = True
        if verdict.index is None:
            self._on_lost(EngineError(verdict.reason))
            return
        stage = self._record.stages[verdict.index]
        stalled = StageStalledError(verdict.index, stage.node_id, stage.unit_id, verdict.reason)
        if not verdict.is_frozen:
            self._on_lost(EngineError(stalled.message))
            return
        request = AbandonStage(
            deployment=self._record.deployment,
            epoch=self._record.epoch,
            index=verdict.index,
            message=verdict.reason,
        )
        # First, because killing it closes edges, and a node that notices that does not know the
        # reason.
        self._on_lost(stalled)
        try:
            await ABANDON_STAGE.call(self._membership, stage.node_id, request)
        except PotluckError as error:
            _log.warning("%s; it could not be killed: %s", stalled.message, error.message)
