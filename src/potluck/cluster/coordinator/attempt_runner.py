"""Runs the parts of an attempt to serve a deployment, and reports how each one ended."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from potluck.cluster.background import Background
from potluck.cluster.coordinator import actions, events, machine
from potluck.cluster.coordinator.attempt import Attempt
from potluck.cluster.coordinator.claiming import Grant, Refusal
from potluck.cluster.coordinator.epoch_end import EpochEnds
from potluck.cluster.coordinator.events import Event
from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.coordinator.releasing import release_others
from potluck.cluster.network.membership import Membership
from potluck.errors import EngineError, InsufficientMemoryError, PotluckError
from potluck.placement.planned import PlannedModel
from potluck.placement.rebalancing import PlanComparison
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord

_log = logging.getLogger(__name__)

_WARN_SECONDS = 3600.0
_MOST_REASONS = 64
"""The number of reasons remembered; they may contain changing numbers, such as of free bytes."""


class AttemptRunner:
    """Runs one attempt at a time. For use in the agent's loop.

    Every part (a plan, a claim, loading, connecting) is a task that ends with an event for
    ``handle``; events name the number of the attempt, so the machine ignores those of earlier ones.
    ``attempt`` is the last attempt that served or is in progress. ``misfit`` says why no plan fits,
    until there is one. ``cleared`` returns once the end of the previous epoch has been examined.
    """

    def __init__(
        self,
        membership: Membership,
        make_attempt: Callable[[], Attempt],
        published: PublishedRecord,
        ends: EpochEnds,
        background: Background,
        *,
        state: Callable[[], machine.State],
        handle: Callable[[Event], None],
        cleared: Callable[[], Coroutine[Any, Any, None]],
        on_record: Callable[[DeploymentRecord], None],
        clock: Callable[[], float],
    ) -> None:
        self.attempt = make_attempt()
        self.misfit: InsufficientMemoryError | None = None
        self._membership = membership
        self._make_attempt = make_attempt
        self._published = published
        self._ends = ends
        self._background = background
        self._state = state
        self._handle = handle
        self._cleared = cleared
        self._on_record = on_record
        self._clock = clock
        self._working: asyncio.Task[None] | None = None
        self._warned_at: dict[str, float] = {}

    def run(self, part: actions.AttemptPart) -> None:
        """Run a part of the attempt; a plan begins another one."""
        if isinstance(part, actions.MakePlan):
            if self._state().serving is None:
                self.attempt.close()
            self.attempt = self._make_attempt()
        self._working = self._background.spawn(self._attempted(part))

    def adopt(self, planned: PlannedModel) -> None:
        """Begin another attempt with a plan that was already made."""
        self.attempt = self._make_attempt()
        self.attempt.adopt(planned)

    async def alternative(self, without: Collection[NodeId]) -> PlanComparison | None:
        """Return the best plan on all other nodes; see ``Attempt.alternative``."""
        left_out = self._ends.left_out(is_first=False)
        without = {*without, *self._state().leaving}
        return await self._make_attempt().alternative(without, left_out)

    def served(self) -> None:
        """Forget what was warned about before: the deployment serves."""
        self._warned_at.clear()

    def cancel(self) -> None:
        """Stop the part in progress."""
        if self._working is not None and self._working is not asyncio.current_task():
            self._working.cancel()
        self._working = None

    async def _plan(self, part: actions.MakePlan) -> None:
        serving = self._state().serving
        if serving is None:
            await self._cleared()  # its findings may leave units out
        is_first = self._state().is_first
        left_out = self._ends.left_out(is_first=is_first)
        try:
            planned = await self.attempt.plan(part.without, left_out, is_first=is_first)
        except PotluckError:
            if is_first or not left_out:
                raise
            planned = await self.attempt.plan(part.without, {})  # better a doubtful unit than none
        self.misfit = None
        in_force = {stage.unit for stage in self._published.record.stages}
        self._handle(
            events.Planned(
                attempt=part.attempt,
                nodes=frozenset(stage.node_id for stage in planned.stages),
                needs_room=planned.needs_room,
                is_in_force=serving is not None
                and in_force == {stage.unit for stage in planned.stages},
            )
        )

    async def _claim(self, part: actions.Claim) -> None:
        result = await self.attempt.claim(part.above, may_be_alone=part.may_be_alone)
        match result:
            case Grant(epoch=epoch):
                self._handle(events.Claimed(attempt=part.attempt, epoch=epoch))
            case Refusal():
                if result.record is not None:
                    self._on_record(result.record)
                self._handle(
                    events.ClaimRefused(
                        attempt=part.attempt,
                        reason=result.reason,
                        is_alone=result.is_alone,
                        highest=result.highest,
                    )
                )

    async def _load(self, part: actions.Load) -> None:
        attempt = self.attempt
        if part.release_first:
            await self._cleared()
            await release_others(self._membership, attempt.record, attempt.kept)
        await attempt.load(self._say_progress, self._say_loaded)
        self._handle(events.Loaded(attempt=part.attempt))

    async def _connect(self, part: actions.Connect) -> None:
        await self._cleared()
        await self.attempt.connect()
        self._handle(events.Connected(attempt=part.attempt))

    async def pause(self, number: int, seconds: float) -> None:
        """Wait before the next attempt."""
        if self._state().serving is None:
            self._published.publish_pause(None if self.misfit is not None else seconds)
        await asyncio.sleep(seconds)
        self._handle(events.PauseOver(attempt=number))

    async def _attempted(self, part: actions.AttemptPart) -> None:
        """Do a part of an attempt, and tell the machine if it fails."""
        try:
            match part:
                case actions.MakePlan():
                    await self._plan(part)
                case actions.Claim():
                    await self._claim(part)
                case actions.Load():
                    await self._load(part)
                case actions.Connect():
                    await self._connect(part)
        except PotluckError as error:
            await self.failed(part.attempt, error)
        except Exception as error:  # noqa: BLE001 - nobody else would ever try again
            _log.exception("%s could not be deployed", self._published.record.model_id)
            unexpected = EngineError(f"{type(error).__name__}: {error}")
            await self.failed(part.attempt, unexpected)

    async def failed(self, number: int, error: PotluckError) -> None:
        """Find out what an error says about units, and report the failure."""
        self.warn(error.message)
        attempt = self.attempt
        outages: tuple[str, ...] = ()
        try:
            outages = await self._ends.failed(
                error, attempt.record, is_first=self._state().is_first
            )
            outages += await self._closed_ways(number, attempt)
        except Exception:  # noqa: BLE001 - nobody else would ever try again
            model_id = self._published.record.model_id
            _log.exception("%s: the state of its units could not be queried", model_id)
        is_stuck = self._state().attempt == number and self._state().serving is None
        if is_stuck and isinstance(error, InsufficientMemoryError):
            self.misfit = error
        self._handle(events.Failed(attempt=number, error=error, is_other_next=bool(outages)))

    async def _closed_ways(self, number: int, attempt: Attempt) -> tuple[str, ...]:
        """Return which nodes cannot connect to which, if that is news and why an attempt failed."""
        if self._state().attempt != number or self._state().phase is not machine.Phase.CONNECTING:
            return ()
        lines = await attempt.closed_ways()
        self._ends.note(lines)
        return lines

    def warn(self, reason: str) -> None:
        """Log why it does not serve: a reason that lasts only once an hour, until it serves."""
        now = self._clock()
        if now - self._warned_at.get(reason, -math.inf) < _WARN_SECONDS:
            return
        if len(self._warned_at) >= _MOST_REASONS:
            self._warned_at.clear()
        self._warned_at[reason] = now
        _log.warning("%s: %s", self._published.record.model_id, reason)

    def _say_progress(self, doing: str, done_bytes: int, total_bytes: int) -> None:
        if self._state().serving is None:  # otherwise it is ready, and stays so
            self._published.publish_progress(doing, done_bytes, total_bytes)

    def _say_loaded(self) -> None:
        if self._state().serving is None:
            self._published.update_progress()

    def why_not(self) -> PotluckError:
        """Return why the deployment does not serve."""
        if self.misfit is None:
            return self._published.why_not()
        there = self._membership.reachable_nodes()
        lost = {stage.node_id for stage in self._published.record.stages} - there
        return self._published.why_no_plan(self.misfit, sorted(lost))
