"""When a running deployment searches for a better plan, and what it does with one.

``placement.rebalancing`` decides whether a plan is worth a move. The occasions for a search are: a
node that has joined and stayed, a stage that is slower or faster than before or than predicted, the
time since the last search, and a user's request. The move itself is an attempt of the state
machine.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from potluck.cluster.background import Spawn, is_set_within
from potluck.cluster.coordinator.metrics import Slowdowns, have_changed
from potluck.errors import PotluckError
from potluck.placement.planned import PlannedModel
from potluck.placement.rebalancing import (
    MoveCost,
    MoveDecision,
    MoveHistory,
    PlanComparison,
    RebalancePolicy,
    cost_of_move,
    evaluate_move,
    is_in_force,
    report_of,
)
from potluck.types.choices import Objective, Rebalance
from potluck.types.cluster import NodeId
from potluck.types.deployment import DeploymentRecord, MoveOutcome, RebalanceReport

_log = logging.getLogger(__name__)

_MAX_SEARCH_SHARE = 0.01
"""The fraction of time that may be spent on periodic searches: planning for a thousand units takes
seconds."""

_NOTE_STEP = 0.05
"""How much the gain in a note has to change before it is published again."""


class RebalanceTarget(Protocol):
    """The interface of a deployment. For use in the agent's loop."""

    @property
    def record(self) -> DeploymentRecord:
        """Return the current record."""
        ...

    @property
    def num_live_tokens(self) -> int:
        """Return how many tokens would have to be prefilled again now."""
        ...

    async def alternative(self, without: Collection[NodeId]) -> PlanComparison | None:
        """Return the best plan on all other nodes; None if nothing can be predicted.

        Raises the same errors as ``plan_model``.
        """
        ...

    async def slowdowns(self) -> Slowdowns:
        """Return how the time of the stages' steps compares with earlier times and the
        prediction.
        """
        ...

    def begin_move(self, planned: PlannedModel, reason: str) -> None:
        """Move to a plan; ``Rebalancing.move_over`` is called when the move has ended."""
        ...


class Rebalancing:
    """The rebalancing of one deployment at its coordinator. For use in the agent's loop.

    ``num_moves`` counts the moves that were carried out here; the last was predicted to gain
    ``last_gain``, as a fraction of the rate before it. ``note`` publishes a ``rebalance_note``, and
    ``release_unused`` ends the workers that hold stages of earlier plans.
    """

    def __init__(
        self,
        deployment: RebalanceTarget,
        policy: RebalancePolicy,
        *,
        note: Callable[[str], None],
        release_unused: Callable[[], Coroutine[Any, Any, None]],
        clock: Callable[[], float],
        spawn: Spawn,
    ) -> None:
        self.num_moves = 0
        self.last_gain: float | None = None
        self._deployment = deployment
        self._note = _GainNote(deployment, note)
        self._release = release_unused
        self._steadiness = MoveHistory(
            policy=replace(policy, threshold=deployment.record.spec.rebalance_threshold)
        )
        self._clock = clock
        self._spawn = spawn
        self._is_serving = False
        self._watching: asyncio.Task[None] | None = None
        self._due_at = math.inf
        self._is_due_earlier = asyncio.Event()
        self._promising_since: float | None = None
        self._moving: asyncio.Future[str] | None = None
        self._gain = 0.0  # of the move in progress
        self._slowdowns: Slowdowns = {}  # at the last search
        self._has_joined = False  # a node, which may hold stages, since unused ones were released

    @property
    def gain_under_way(self) -> float | None:
        """Return the predicted gain of the move in progress; None if there is none."""
        return None if self._moving is None else self._gain

    # Notifications from the deployment.

    def serves(self) -> None:
        """Search once everything has settled, and periodically from then on: a pipeline is
        attached.
        """
        self._is_serving = True
        self._has_joined = False
        self._promising_since = None
        self._slowdowns = {}
        self._stop_watching()
        if self._is_automatic:
            self._due_at = self._clock() + self._policy.settle_seconds
            self._watching = self._spawn(self._watch())

    def pauses(self) -> None:
        """Note that no pipeline is attached any more."""
        self._is_serving = False
        self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watching is not None and self._watching is not asyncio.current_task():
            self._watching.cancel()
        self._watching = None

    def node_joined(self, node_id: NodeId) -> None:
        """Consider a node once it has been present for a while.

        One that was lost may still hold a stage of an earlier plan. It is kept until then, because
        a move to that plan would have nothing to load.
        """
        now = self._clock()
        self._steadiness = self._steadiness.joined(node_id, now)
        self._has_joined = True
        if not self._is_serving:
            return
        settles_in = self._steadiness.settles_at(node_id) - now
        if self._is_automatic:
            self._search_in(settles_in)
        else:
            self._spawn(self._release_in(settles_in))

    def move_over(self, failure: str) -> None:
        """Note the end of a move: the new plan serves, or ``failure`` says why not."""
        moving, self._moving = self._moving, None
        now = self._clock()
        # A failed move counts as well: otherwise it would be retried endlessly.
        self._steadiness = self._steadiness.moved(now)
        if not failure:
            self.num_moves += 1
            self.last_gain = self._gain
            self._note.update(f"moved to a plan that is predicted to be {_faster(self._gain)}")
        else:
            self._note.update(f"a move to another plan was abandoned: {failure}")
        self._note.gain = None
        if self._is_serving and self._is_automatic:
            self._search_in(max(self._policy.settle_seconds, self._steadiness.cool_at(now) - now))
        if moving is not None and not moving.done():
            moving.set_result(failure)

    def close(self) -> None:
        """Stop: the deployment ends here. Idempotent."""
        self.pauses()
        if self._moving is not None and not self._moving.done():
            self._moving.set_result("the deployment is ending on this node")

    # Requests by the user.

    async def ask(self, *, is_dry_run: bool) -> RebalanceReport:
        """Compare the plan in force with the best one, and move if that is any faster.

        The threshold, the settling of nodes and the cool-down do not apply. With ``is_dry_run``
        nothing is moved. Raises the error that makes planning impossible.
        """
        deployment, record = self._deployment, self._deployment.record
        if not self._is_serving:
            return self._stays("it is not serving; it will be placed again in any case")
        alternative = await deployment.alternative(())
        if alternative is None:
            return self._stays("there is no prediction for its plans")
        if is_in_force(alternative.planned, record.stages):
            return self._stays("the plan in force is the best one", alternative)
        decision, cost = self._evaluate(alternative)
        report = report_of(record, alternative, decision, cost)
        is_wanted = record.spec.objective is Objective.MEMORY or record.spec.layout
        if decision.gain <= 0.0 and not is_wanted:
            return _with(report, MoveOutcome.STAYS, "no other plan is predicted to be faster")
        if is_dry_run:
            return _with(report, MoveOutcome.POSSIBLE, self._automatic_action(decision))
        is_same_epoch = deployment.record.epoch == record.epoch
        if not self._is_serving or self._moving is not None or not is_same_epoch:
            return _with(report, MoveOutcome.STAYS, "another plan is already being deployed")
        moving = self._move(alternative, decision)
        failure = await asyncio.shield(moving)
        if failure:
            return _with(report, MoveOutcome.FAILED, failure)
        return _with(report, MoveOutcome.MOVED, deployment.record.status.rebalance_note)

    # Automatic searches.

    @property
    def _policy(self) -> RebalancePolicy:
        return self._steadiness.policy

    @property
    def _is_automatic(self) -> bool:
        record = self._deployment.record
        # Dividing a model by memory does not optimize speed.
        return (
            record.spec.rebalance is not Rebalance.NEVER
            and record.spec.objective is not Objective.MEMORY
        )

    def _search_in(self, seconds: float) -> None:
        """Search after this time, or earlier if that was planned."""
        due_at = self._clock() + max(0.0, seconds)
        if due_at < self._due_at:
            self._due_at = due_at
            self._is_due_earlier.set()

    async def _watch(self) -> None:
        """Search whenever it is time, for as long as the pipeline is attached."""
        own = asyncio.current_task()
        watch_at = self._clock() + self._policy.watch_seconds
        while self._watching is own:
            now = self._clock()
            next_at = min(self._due_at, watch_at)
            if now < next_at:
                self._is_due_earlier.clear()
                await is_set_within(self._is_due_earlier, next_at - now)
                continue
            if watch_at <= now:
                watch_at = now + self._policy.watch_seconds
                await self._guarded(self._check_stages())
            if self._due_at <= now:
                self._due_at = math.inf
                await self._guarded(self._look())
                elapsed = self._clock() - now
                self._search_in(max(self._policy.check_seconds, elapsed / _MAX_SEARCH_SHARE))

    async def _guarded(self, look: Coroutine[Any, Any, None]) -> None:
        try:
            await look
        except Exception:  # noqa: BLE001 - nobody else would ever look again
            _log.exception(
                "%s: the search for a better plan failed", self._deployment.record.model_id
            )

    async def _check_stages(self) -> None:
        """Search for another plan immediately if a stage is not as fast as expected."""
        found = await self._deployment.slowdowns()
        if have_changed(self._slowdowns, found):
            self._slowdowns = {**self._slowdowns, **found}
            self._search_in(0.0)

    async def _look(self) -> None:
        record, now = self._deployment.record, self._clock()
        if self._moving is not None:
            return
        try:
            in_use = {stage.node_id for stage in record.stages}
            unsettled = self._steadiness.unsettled(self._steadiness.joins, now) - in_use
            alternative = await self._deployment.alternative(unsettled)
        except PotluckError as error:
            _log.info("%s: there is no plan to compare with: %s", record.model_id, error.message)
            return
        is_same_epoch = self._deployment.record.epoch == record.epoch
        if not self._is_serving or not is_same_epoch or self._moving is not None:
            return
        if alternative is not None:
            self._conclude(alternative)
        is_promising = self._promising_since is not None or self._note.gain is not None
        is_settled = self._steadiness.next_settled_at(self._clock()) is None
        if is_settled and not is_promising:
            await self._release_unused()

    async def _release_in(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self._release_unused()

    async def _release_unused(self) -> None:
        if self._has_joined and self._is_serving and self._moving is None:
            self._has_joined = False
            await self._release()

    def _conclude(self, alternative: PlanComparison) -> None:
        record, now = self._deployment.record, self._clock()
        settled_at = self._steadiness.next_settled_at(now)
        if settled_at is not None:
            self._search_in(settled_at - now)
        if is_in_force(alternative.planned, record.stages):
            self._promising_since = None
            self._note.forget()
            return
        decision, cost = self._evaluate(alternative)
        if not decision.pays:
            self._promising_since = None
            if decision.net_gain < decision.bar / 2:
                self._note.forget()
            self._search_when_it_pays(decision)
            return
        if record.spec.rebalance is Rebalance.ASK or record.spec.layout:
            self._note.update_gain(
                decision.gain, f"run potluck rebalance {record.model_id} to move it"
            )
            return
        if self._promising_since is None:
            self._promising_since = now
        wait = max(
            self._promising_since + self._policy.confirm_seconds,
            self._steadiness.cool_at(now),
        )
        if now < wait:
            if wait - now > self._policy.confirm_seconds:
                self._note.update_gain(decision.gain, "it will move once the gain has persisted")
            self._search_in(wait - now)
            return
        _log.warning(
            "%s: moving to a plan that is predicted to be %s faster: %d bytes to load in %.1f s, "
            "%s",
            record.model_id,
            _percent(decision.gain),
            cost.num_bytes,
            cost.load_seconds,
            "not serving meanwhile" if cost.needs_room else "serving meanwhile",
        )
        self._move(alternative, decision)

    def _search_when_it_pays(self, decision: MoveDecision) -> None:
        """Search again when a new node has stayed long enough for the move to be worth its cost."""
        needed = decision.needed_seconds
        if needed is not None and decision.horizon_seconds < needed <= self._policy.horizon_seconds:
            self._search_in(needed - decision.horizon_seconds)

    def _evaluate(self, alternative: PlanComparison) -> tuple[MoveDecision, MoveCost]:
        record, now = self._deployment.record, self._clock()
        cost = cost_of_move(
            alternative.planned,
            record.stages,
            alternative.predicted,
            num_live_tokens=self._deployment.num_live_tokens,
        )
        nodes = {stage.node_id for stage in alternative.planned.stages}
        decision = evaluate_move(
            alternative.in_force,
            alternative.predicted,
            record.spec.objective,
            cost,
            horizon_seconds=self._steadiness.horizon(nodes, now),
            bar=self._steadiness.bar(now),
        )
        return decision, cost

    def _move(self, alternative: PlanComparison, decision: MoveDecision) -> asyncio.Future[str]:
        moving: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._moving = moving
        self._gain = decision.gain
        self._promising_since = None
        reason = f"moving to a plan that is predicted to be {_faster(decision.gain)}"
        before = self._steadiness
        self._deployment.begin_move(alternative.planned, reason)
        if moving.done():  # it did not even begin
            self._steadiness = before
        return moving

    # Reports and notes.

    def _stays(self, reason: str, alternative: PlanComparison | None = None) -> RebalanceReport:
        record = self._deployment.record
        return RebalanceReport(
            model_id=record.model_id,
            outcome=MoveOutcome.STAYS,
            reason=reason,
            stages=record.stages,
            in_force=record.status.plan.prediction if alternative is None else alternative.in_force,
        )

    def _automatic_action(self, decision: MoveDecision) -> str:
        """Return what the deployment would do automatically."""
        record, now = self._deployment.record, self._clock()
        cool_at = self._steadiness.cool_at(now)
        if record.spec.rebalance is Rebalance.NEVER:
            return "it does not move automatically (rebalance is never)"
        if record.spec.rebalance is Rebalance.ASK:
            return "it does not move automatically (rebalance is ask)"
        if record.spec.objective is Objective.MEMORY:
            return "it does not move automatically, because it is divided by memory"
        if record.spec.layout:
            return "it does not move automatically, because its layout was given"
        if decision.net_gain < 0.0:
            return "it does not move automatically: the move costs more than it gains"
        if not decision.pays:
            return (
                f"it does not move automatically: after its cost the gain is"
                f" {_percent(decision.net_gain)}, and at least {_percent(decision.bar)} is required"
            )
        if now < cool_at:
            return (
                f"it moves automatically in {math.ceil(cool_at - now)} s, if this is still so then"
            )
        return "it moves automatically"


class _GainNote:
    """The published note about a better plan, and the gain that it names; None if it names none."""

    def __init__(self, deployment: RebalanceTarget, publish: Callable[[str], None]) -> None:
        self.gain: float | None = None
        self._deployment = deployment
        self._publish = publish

    def update(self, note: str) -> None:
        """Publish a note, unless it is the current one."""
        if note != self._deployment.record.status.rebalance_note:
            self._publish(note)

    def update_gain(self, gain: float, what: str) -> None:
        """Publish the gain of a plan, unless it was published and has hardly changed since."""
        if self.gain is None or abs(gain - self.gain) >= _NOTE_STEP:
            self.update(f"another plan is predicted to be {_faster(gain)}; {what}")
            self.gain = gain

    def forget(self) -> None:
        """Clear the note about a plan that is no longer better."""
        if self.gain is not None:
            self.gain = None
            self.update("")


def _with(report: RebalanceReport, outcome: MoveOutcome, reason: str) -> RebalanceReport:
    return msgspec.structs.replace(report, outcome=outcome, reason=reason)


def _faster(gain: float) -> str:
    """Return the gain of a plan as text; one that divides by memory may well be slower."""
    return f"{_percent(abs(gain))} {'faster' if gain >= 0 else 'slower'}"


def _percent(part: float) -> str:
    return f"{part:.0%}"
