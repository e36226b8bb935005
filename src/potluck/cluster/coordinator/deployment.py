"""One deployment as run by its coordinator: the driver of ``coordinator.machine``.

The state machine decides what to do next; this module does it in the agent's event loop and reports
the result to the machine. A deployment's sequences live in ``answering``, across all of its epochs:
when a stage is lost they wait, and continue over the stages of the next epoch.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from potluck.cluster.background import Background, in_loop
from potluck.cluster.calls import StageLost
from potluck.cluster.coordinator import actions, events, machine
from potluck.cluster.coordinator.actions import Action
from potluck.cluster.coordinator.answering import Answering
from potluck.cluster.coordinator.attempt import Attempt, DeploymentDependencies
from potluck.cluster.coordinator.claiming import Grant, Refusal
from potluck.cluster.coordinator.epoch_end import EpochEnds
from potluck.cluster.coordinator.events import Event
from potluck.cluster.coordinator.excluded_units import StageStalledError, StageStartError
from potluck.cluster.coordinator.holders import Holders
from potluck.cluster.coordinator.machine import apply
from potluck.cluster.coordinator.metrics import own_metrics, stage_stats, with_stages
from potluck.cluster.coordinator.paces import Paces, paces_of
from potluck.cluster.coordinator.published_record import Publish, PublishedRecord
from potluck.cluster.coordinator.rebalancing import Rebalancing
from potluck.cluster.coordinator.releasing import release_others, stop_everything
from potluck.cluster.coordinator.spares import load_spares
from potluck.cluster.coordinator.verification import verify_files
from potluck.cluster.coordinator.weights import ModelWeights, end_weights, gather_transfers
from potluck.cluster.edges.path_figures import PathFigures
from potluck.drafting.model import ModelDrafts
from potluck.drafting.sources import draft_source, names_model
from potluck.errors import (
    DefectError,
    EngineError,
    InsufficientMemoryError,
    ModelFileError,
    MovedError,
    PotluckError,
)
from potluck.models.states import slot_bytes
from potluck.placement.comparison import PlanComparison
from potluck.placement.model_counting import counting_of
from potluck.placement.planned import PlannedModel
from potluck.serving.dispatcher import Load
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import (
    DeploymentRecord,
    ModelFingerprint,
    RebalanceReport,
    Verification,
)
from potluck.types.drafting import DraftSource
from potluck.types.gateway import ModelMetrics
from potluck.types.profile import ModelProfile
from potluck.types.sequence import (
    NOTHING_COMMITTED,
    Cancel,
    Continuation,
    OnUpdate,
    SequenceRequest,
)
from potluck.types.step import KV_BLOCK_TOKENS

_log = logging.getLogger(__name__)

_END_SECONDS = 10.0
"""The time for running tasks to finish when the deployment ends here; none of them waits for
long."""
_DRAIN_SECONDS = 30.0
_POLL_SECONDS = 0.05

_WARN_SECONDS = 3600.0
_MOST_REASONS = 64
"""The number of reasons remembered; they may contain changing numbers, such as of free bytes."""

_TRANSFERS_SECONDS = 1.0
"""The time for transfer processes to report their final figures; they report twice a second."""


class Deployment:
    """A deployment at its coordinator; ``publish`` sends its record to every agent.

    ``on_record`` is called with a record that supersedes this one, if a node has one. With
    ``weights``, nodes without files of the model get them by content; ``discard`` removes the
    model, with a reason, if these are damaged. For use in the agent's loop.
    """

    def __init__(
        self,
        record: DeploymentRecord,
        profile: ModelProfile,
        fingerprint: ModelFingerprint,
        surroundings: DeploymentDependencies,
        *,
        publish: Publish,
        on_record: Callable[[DeploymentRecord], None],
        weights: ModelWeights | None = None,
        discard: Callable[[DeploymentId, str], None] = lambda deployment, reason: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = profile.config
        self._counting = counting_of(profile, surroundings.cost_of)
        self._fingerprint = fingerprint
        self._weights = weights
        self._discard = discard
        self._around = surroundings
        self._membership = surroundings.membership
        self._on_record = on_record
        self._clock = clock
        self._state = machine.State(epoch=record.epoch)
        self._ends = EpochEnds(self._membership, clock)
        self._published = PublishedRecord(
            record,
            node_id=self._membership.node_id,
            placed=self._placed,
            because=self._ends.because,
            publish=publish,
            clock=clock,
        )
        self._holders = Holders(self._membership, self._published)
        self._attempt = self._new_attempt()  # the last attempt that served or is in progress
        self._served = self._attempt  # the attempt that serves, or the last one that did
        self._answering = Answering(
            record.model_id,
            profile.config.vocab_size,
            self._attempt.limits,
            has_logits=profile.config.has_logits,
            drafts=self._draft_source(record),
            recovery_wait_seconds=record.spec.recovery_wait_seconds,
            why_not=self._why_not,
            no_plan=lambda: self._misfit is not None,
            retry_after=self._published.retry_after,
            clock=clock,
        )
        self._first: asyncio.Future[None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._background = Background(f"{record.model_id}: a task failed")
        self._leaving: dict[NodeId, asyncio.Event] = {}
        self._rebalancing = Rebalancing(
            self, surroundings.rebalance_policy, clock=clock, spawn=self._background.spawn
        )
        self._better: PlannedModel | None = None  # the plan of a requested move
        self._misfit: InsufficientMemoryError | None = None  # until there is a plan
        self._lost_at: float | None = None
        self._warned_at: dict[str, float] = {}
        self._num_spares = 0
        self._latest_metrics: tuple[Epoch, float, ModelMetrics] | None = None

    @property
    def record(self) -> DeploymentRecord:
        """Return the current record; every agent has it, or will shortly."""
        return self._published.record

    @property
    def load(self) -> Load | None:
        """Return the current load; None while it does not serve."""
        return self._answering.load if self._answering.is_attached else None

    def path(self) -> tuple[NodeId, PathFigures] | None:
        """Return the figures of the edge to the first stage, and the node of that stage."""
        return self._answering.path()

    async def start(self) -> None:
        """Deploy for the first time, then run independently.

        Raises the error that prevents the deployment, which must then be removed, as after a
        cancellation.
        """
        self._first = asyncio.get_running_loop().create_future()
        self._state = machine.State(epoch=self.record.epoch, is_first=True)
        self._handle(events.DeploymentStarted())
        await self._first

    def resume(self) -> None:
        """Take over from a coordinator that was lost or is leaving."""
        self._lost_at = self._clock()
        self._handle(events.DeploymentStarted(reason="its coordinator was lost"))

    async def remove(self, reason: str = "undeployed") -> None:
        """End the deployment: live sequences fail, the stages are stopped."""
        await self._end()
        await self._answering.end(EngineError("the model was undeployed"))
        await stop_everything(self._membership, self.record)
        await end_weights(self._membership, self.record)
        self._published.say_removed(reason)

    async def close(self, reason: PotluckError | None = None) -> None:
        """Hand the deployment to another node, leaving its stages as they are. Idempotent.

        Live sequences end with ``reason``, normally an error that makes their gateways continue
        them.
        """
        await self._end()
        await self._answering.end(
            reason
            or MovedError(
                "the coordinator of the model has left the cluster",
                hint="send the request again: another node takes over",
            )
        )

    def rename(self, model_id: str) -> None:
        """Give the deployment another name for clients."""
        self._answering.model_id = model_id
        self._published.rename(model_id)

    def name_successor(self, node_id: NodeId) -> None:
        """Make all nodes agree that ``node_id`` claims the next epoch."""
        self._published.say(successor=node_id)

    async def continue_without(self, node_id: NodeId) -> None:
        """Move the deployment off a node; return when that is done or impossible. Sequences
        continue.
        """
        vacated = self._leaving.setdefault(node_id, asyncio.Event())
        self._handle(events.LeaveRequested(node_id=node_id))
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await vacated.wait()

    async def finish(self) -> None:
        """Wait for the sequences in flight, for at most half a minute."""
        deadline = self._clock() + _DRAIN_SECONDS
        while self._clock() < deadline:
            load = self.load
            if load is None or load.num_running + load.num_waiting == 0:
                return
            await asyncio.sleep(_POLL_SECONDS)

    def stage_lost(self, lost: StageLost) -> None:
        """Handle a worker that ended by itself."""
        attempt = self._attempt.record
        is_starting = attempt.epoch == lost.epoch and self._state.phase in machine.STARTING
        record = attempt if is_starting else self.record
        error: PotluckError
        if (is_starting or lost.has_stalled) and 0 <= lost.index < len(record.stages):
            kind = StageStalledError if lost.has_stalled else StageStartError
            unit_id = record.stages[lost.index].unit_id
            error = kind(lost.index, lost.node_id, unit_id, lost.message)
        else:
            error = EngineError(f"stage {lost.index} on node {lost.node_id}: {lost.message}")
        self._lost(lost.epoch, error)

    def _lost(self, epoch: Epoch, error: PotluckError) -> None:
        load = self._answering.load
        self._handle(
            events.StageLost(
                epoch=epoch, error=error, is_in_use=load.num_running + load.num_waiting > 0
            )
        )

    def node_left(self, node_id: NodeId) -> None:
        """Handle a node that has left."""
        error = EngineError(f"node {node_id} was lost")
        self._handle(events.NodeLeft(node_id=node_id, error=error))
        if self._state.phase is not machine.Phase.OVER:
            self._holders.node_left(node_id)

    def node_joined(self, node_id: NodeId) -> None:
        """Handle a node that has joined: there may be room for the model, spares, or a better
        plan.
        """
        self._misfit = None  # requests wait for the plan with it
        self._holders.node_joined()
        self._rebalancing.node_joined(node_id)
        self._handle(events.NodeJoined())
        if self.record.spec.num_spares:
            self._background.spawn(self._load_spares())
        self._background.spawn(self._identify_files())

    def start_sequence(
        self,
        request: SequenceRequest,
        on_update: OnUpdate,
        continuation: Continuation = NOTHING_COMMITTED,
    ) -> Cancel:
        """Compute a sequence, or what follows ``continuation``; see ``Answering.start``."""
        return self._answering.start(request, on_update, continuation)

    def own_metrics(self) -> ModelMetrics | None:
        """Return the current metrics without those of its stages; None while it does not serve."""
        record, load = self.record, self.load
        if load is None:
            return None
        return own_metrics(
            record,
            load,
            self._answering.rates.speed(record.spec.num_streams),
            num_blocks=self._served.limits.num_blocks,
            num_spares=self._num_spares,
            slot_bytes=slot_bytes(self._config),
            num_moves=self._rebalancing.num_moves,
            last_gain=self._rebalancing.last_gain,
            generated=self._answering.generated,
        )

    async def metrics(self, *, max_age_seconds: float = 0.0) -> ModelMetrics | None:
        """Return metrics that are at most this old; None while it does not serve."""
        record, sent, own = self.record, self._answering.sent, self.own_metrics()
        if sent is None or own is None:
            return None
        if self._latest_metrics is not None:
            epoch, at, latest = self._latest_metrics
            if epoch == record.epoch and self._clock() - at < max_age_seconds:
                return latest
        metrics = await with_stages(self._membership, record, own, sent)
        self._latest_metrics = (record.epoch, self._clock(), metrics)
        return metrics

    # Moves to better plans.

    async def rebalance(self, *, is_dry_run: bool) -> RebalanceReport:
        """Move to the best plan, or report what that would gain; see ``Rebalancing.ask``."""
        return await self._rebalancing.ask(is_dry_run=is_dry_run)

    @property
    def num_live_tokens(self) -> int:
        """Return how many tokens the cache holds now, in whole blocks."""
        num_free = self._answering.load.num_free_blocks
        return (self._served.limits.num_blocks - num_free) * KV_BLOCK_TOKENS

    async def alternative(self, without: Collection[NodeId]) -> PlanComparison | None:
        """Return the best plan on all other nodes; see ``Attempt.alternative``."""
        left_out = self._ends.left_out(is_first=False)
        without = {*without, *self._state.leaving}
        return await self._new_attempt().alternative(without, left_out)

    async def paces(self) -> Paces:
        """Return how the time of the stages' steps compares with earlier times and the
        prediction.
        """
        return paces_of(
            await stage_stats(self._membership, self.record), self.record.status.plan.prediction
        )

    def begin_move(self, planned: PlannedModel, reason: str) -> None:
        """Move to a plan that was just made, unless something else is in progress."""
        self._better = planned
        nodes = frozenset(stage.node_id for stage in planned.stages)
        self._handle(events.MoveWanted(nodes=nodes, reason=reason, needs_room=planned.needs_room))

    def say_rebalance(self, note: str) -> None:
        """Publish what another plan would gain, or the outcome of a move."""
        self._published.say(rebalance_note=note)

    # Events in, actions out.

    def _handle(self, event: Event) -> None:
        following = apply(self._state, event, self._clock())
        self._state = following.state
        for action in following.actions:
            try:
                self._carry_out(action)
            except Exception:  # noqa: BLE001 - the other actions have nothing to do with it
                _log.exception("%s: %s failed", self.record.model_id, type(action).__name__)

    def _carry_out(self, action: Action) -> None:
        match action:
            case actions.MakePlan(attempt=number, without=without):
                self._begin(number, without)
            case actions.Claim(attempt=number, above=above, may_be_alone=may_be_alone):
                self._work(number, partial(self._claim, number, above, may_be_alone=may_be_alone))
            case actions.Load(attempt=number, release_first=release_first):
                self._work(number, partial(self._load, number, release_first=release_first))
            case actions.Connect(attempt=number):
                self._work(number, partial(self._connect, number))
            case actions.Serve():
                self._serve()
            case actions.Detach(error=error):
                self._detach(error)
            case actions.Cancel():
                self._cancel()
            case actions.Examine(attempt=number, error=error):
                self._background.spawn(self._failed(number, error))
            case actions.Pause(attempt=number, seconds=seconds):
                self._background.spawn(self._pause(number, seconds))
            case actions.ReportState(reason=reason, is_ready=is_ready, is_degraded=is_degraded):
                self._published.publish_state(reason, is_ready=is_ready, is_degraded=is_degraded)
            case actions.FailDeployment(error=error):
                if self._first is not None and not self._first.done():
                    self._first.set_exception(self._ends.with_outages(error))
            case actions.Vacated(nodes=nodes):
                for node in nodes:
                    self._leaving.setdefault(node, asyncio.Event()).set()
            case actions.UsePlan():
                self._take_plan()
            case actions.MoveOver(reason=reason):
                self._move_over(reason)
            case actions.ReleaseUnused(epoch=epoch):
                self._release_unused(epoch)

    # What an attempt does. Each part ends with an event.

    def _begin(self, number: int, without: frozenset[NodeId]) -> None:
        if self._state.serving is None:
            self._attempt.close()
        self._attempt = self._new_attempt()
        self._work(number, partial(self._plan, number, without))

    def _take_plan(self) -> None:
        planned, self._better = self._better, None
        if planned is not None:
            self._attempt = self._new_attempt()
            self._attempt.adopt(planned)

    def _move_over(self, failure: str) -> None:
        if failure and self.record.epoch == self._served.record.epoch:
            # from now on, report the plan that stays, not the abandoned one
            self._attempt = self._served
        self._rebalancing.move_over(failure)

    def _release_unused(self, epoch: Epoch) -> None:
        """Continue with the plan in force as if there had been no attempt since."""
        self._attempt = self._served
        # Stages requested at a higher epoch are only released at that epoch.
        superseded = msgspec.structs.replace(self._served.record, epoch=epoch)
        self._background.spawn(release_others(self._membership, superseded, self._served.stages))

    async def _plan(self, number: int, without: frozenset[NodeId]) -> None:
        serving = self._state.serving
        if serving is None and self._clearing is not None:
            await asyncio.shield(self._clearing)  # its findings may leave units out
        is_first = self._state.is_first
        left_out = self._ends.left_out(is_first=is_first)
        try:
            planned = await self._attempt.plan(without, left_out, is_first=is_first)
        except PotluckError:
            if is_first or not left_out:
                raise
            planned = await self._attempt.plan(without, {})  # better a doubtful unit than none
        self._misfit = None
        in_force = {(stage.node_id, stage.unit_id) for stage in self.record.stages}
        self._handle(
            events.Planned(
                attempt=number,
                nodes=frozenset(stage.node_id for stage in planned.stages),
                needs_room=planned.needs_room,
                is_in_force=serving is not None
                and in_force == {(stage.node_id, stage.unit_id) for stage in planned.stages},
            )
        )

    async def _claim(self, number: int, above: Epoch, *, may_be_alone: bool) -> None:
        result = await self._attempt.claim(above, may_be_alone=may_be_alone)
        match result:
            case Grant(epoch=epoch):
                self._handle(events.Claimed(attempt=number, epoch=epoch))
            case Refusal():
                if result.record is not None:
                    self._on_record(result.record)
                self._handle(
                    events.ClaimRefused(
                        attempt=number,
                        reason=result.reason,
                        is_alone=result.is_alone,
                        highest=result.highest,
                    )
                )

    async def _load(self, number: int, *, release_first: bool) -> None:
        attempt = self._attempt
        if release_first:
            if self._clearing is not None:
                await asyncio.shield(self._clearing)
            await release_others(self._membership, attempt.record, attempt.kept)
        await attempt.load(self._say_progress, self._say_loaded)
        self._handle(events.Loaded(attempt=number))

    async def _connect(self, number: int) -> None:
        if self._clearing is not None:
            await asyncio.shield(self._clearing)
        await self._attempt.connect()
        self._handle(events.Connected(attempt=number))

    def _serve(self) -> None:
        """The edges are open: continue every sequence."""
        attempt = self._attempt
        epoch, loop = attempt.record.epoch, asyncio.get_running_loop()

        def over(error: PotluckError) -> None:
            with suppress(RuntimeError):  # the loop is closed, and so is everything else
                loop.call_soon_threadsafe(self._lost, epoch, error)

        def committed() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._handle, events.TokenCommitted(epoch=epoch))

        self._answering.attach(attempt.limits, attempt.pipeline_opener(committed), over)
        self._served = attempt
        self._ends.served()
        self._warned_at.clear()
        gain = self._rebalancing.gain_under_way
        if gain is not None:
            self._published.note_move(gain)
        self._rebalancing.serves()
        if self._lost_at is not None:
            self._published.note_recovery(self._clock() - self._lost_at)
        self._lost_at = None
        self._background.spawn(self._settle(attempt))
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    async def release_unused(self) -> None:
        """End the workers, on all nodes, that hold none of the stages of the plan in force."""
        if (attempt := self._in_force) is not None:
            await release_others(self._membership, attempt.record, attempt.stages)

    @property
    def _in_force(self) -> Attempt | None:
        """Return the attempt whose plan serves; None between two plans."""
        attempt, serving = self._served, self._state.serving
        return attempt if serving and serving.epoch == attempt.record.epoch else None

    async def _settle(self, attempt: Attempt) -> None:
        """Release what the plan does not use, and load its spares."""
        await self.release_unused()
        await self._load_spares()
        if attempt.record.status.files.manifest is not None:
            await self._publish_files(attempt)
        await self._identify_files()

    async def _identify_files(self) -> None:
        """Let nodes that have none of the model's files read its texts, to answer clients."""
        attempt = self._in_force
        if attempt is None:
            return  # the next epoch does it
        try:
            if await attempt.identify_files():
                self._published.say()
        except PotluckError as error:
            _log.warning(
                "%s: nodes without its files cannot answer for it: %s",
                self.record.model_id,
                error.message,
            )

    async def _publish_files(self, attempt: Attempt) -> None:
        """Publish what nodes fetched of the model's files, and whether the files are intact."""
        await asyncio.sleep(_TRANSFERS_SECONDS)
        attempt.note_transfers(await gather_transfers(self._membership, attempt.record))
        self._published.say()
        if attempt.record.status.files.verification is not Verification.PENDING:
            return
        try:
            attempt.note_verification(await verify_files(self._membership, attempt.record))
        except ModelFileError as error:
            _log.error("%s was undeployed: %s", self.record.model_id, error.message)
            self._discard(self.record.deployment, error.message)
        else:
            self._published.say()

    async def _load_spares(self) -> None:
        if self.record.spec.num_spares and (attempt := self._in_force) is not None:
            sparings = await attempt.sparings()
            self._num_spares = await load_spares(
                self._membership,
                attempt.record,
                attempt.size,
                sparings,
                self._weights,
                attempt.links,
            )

    def _work(self, number: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._working = self._background.spawn(self._attempted(number, work))

    async def _attempted(self, number: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do a part of an attempt, and tell the machine if it fails."""
        try:
            await work()
        except PotluckError as error:
            await self._failed(number, error)
        except Exception as error:  # noqa: BLE001 - nobody else would ever try again
            _log.exception("%s could not be deployed", self.record.model_id)
            unexpected = EngineError(f"{type(error).__name__}: {error}")
            await self._failed(number, unexpected)

    def _warn(self, reason: str) -> None:
        """Log why it does not serve: a reason that lasts only once an hour, until it serves."""
        now = self._clock()
        if now - self._warned_at.get(reason, -math.inf) < _WARN_SECONDS:
            return
        if len(self._warned_at) >= _MOST_REASONS:
            self._warned_at.clear()
        self._warned_at[reason] = now
        _log.warning("%s: %s", self.record.model_id, reason)

    async def _failed(self, number: int, error: PotluckError) -> None:
        self._warn(error.message)
        attempt = self._attempt
        outages: tuple[str, ...] = ()
        try:
            outages = await self._ends.failed(error, attempt.record, is_first=self._state.is_first)
            outages += await self._closed_ways(number, attempt)
        except Exception:  # noqa: BLE001 - nobody else would ever try again
            _log.exception("%s: the state of its units could not be queried", self.record.model_id)
        is_stuck = self._state.attempt == number and self._state.serving is None
        if is_stuck and isinstance(error, InsufficientMemoryError):
            self._misfit = error
        self._handle(events.Failed(attempt=number, error=error, is_other_next=bool(outages)))
        self._answering.end_waits()

    def _why_not(self) -> PotluckError:
        if self._misfit is None:
            return self._published.why_not()
        there = self._membership.nodes() | {self._membership.node_id}
        lost = {stage.node_id for stage in self.record.stages} - there
        return self._published.why_no_plan(self._misfit, sorted(lost))

    async def _closed_ways(self, number: int, attempt: Attempt) -> tuple[str, ...]:
        """Return which nodes cannot connect to which, if that is news and why an attempt failed."""
        if self._state.attempt != number or self._state.phase is not machine.Phase.CONNECTING:
            return ()
        lines = await attempt.closed_ways()
        self._ends.note(lines)
        return lines

    async def _pause(self, number: int, seconds: float) -> None:
        if self._state.serving is None:
            self._published.publish_pause(None if self._misfit is not None else seconds)
        await asyncio.sleep(seconds)
        self._handle(events.PauseOver(attempt=number))

    # The end of an epoch.

    def _detach(self, error: PotluckError | None) -> None:
        """Stop forming steps; then determine what the end of the epoch means for units and
        requests.
        """
        if error is not None:
            self._warn(error.message)
            self._lost_at = self._clock() if self._lost_at is None else self._lost_at
        self._answering.stop()
        self._rebalancing.pauses()
        self._clearing = self._background.spawn(self._clear(self._clearing, error, self.record))

    async def _clear(
        self,
        earlier: asyncio.Task[None] | None,
        error: PotluckError | None,
        record: DeploymentRecord,
    ) -> None:
        if earlier is not None:
            await asyncio.shield(earlier)
        in_flight = await self._answering.detach()
        defect = error.message if isinstance(error, DefectError) else ""
        try:
            if error is not None:
                ends = await self._ends.close(record)
                crashes = (line for each in ends.values() for line in each.crashes)
                defect = "; ".join(crashes) or defect
                self._ends.ended(error, record, ends)
        except Exception:  # noqa: BLE001 - the next epoch shall begin, whatever it is
            _log.exception("%s: error while ending an epoch", self.record.model_id)
        finally:
            self._answering.judge(in_flight, defect)

    def _cancel(self) -> None:
        if self._working is not None and self._working is not asyncio.current_task():
            self._working.cancel()
        self._working = None

    async def _end(self) -> None:
        self._handle(events.Ended())
        self._rebalancing.close()
        self._holders.close()
        if self._first is not None and not self._first.done():
            self._first.set_exception(
                EngineError(f"{self.record.model_id} was removed while it was being deployed")
            )
        num_unwilling = await self._background.end(self._clearing, timeout_seconds=_END_SECONDS)
        if num_unwilling:
            _log.error("%s: %d tasks did not end", self.record.model_id, num_unwilling)

    def _draft_source(self, record: DeploymentRecord) -> DraftSource | None:
        small, start = record.status.small, self._around.start_draft
        if not names_model(record.spec.draft):
            return draft_source(record.spec.draft)
        if small is None or start is None:
            return None
        return ModelDrafts(
            partial(start, small.deployment),
            in_loop(asyncio.get_running_loop()),
            self._drafts_ready,
            vocab_size=self._config.vocab_size,
            context_tokens=small.context_tokens,
        )

    def _drafts_ready(self) -> None:
        self._answering.drafts_ready()

    # What is published.

    def _placed(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return ``record`` with the epoch and stages of the last attempt, once that is in
        force.
        """
        serving = self._state.serving
        if serving is None or serving.epoch == self._attempt.record.epoch:
            return self._attempt.placed(record)
        return record

    def _say_progress(self, doing: str, done_bytes: int, total_bytes: int) -> None:
        if self._state.serving is None:  # otherwise it is ready, and stays so
            self._published.publish_progress(doing, done_bytes, total_bytes)

    def _say_loaded(self) -> None:
        if self._state.serving is None:
            self._published.say_progress()

    def _new_attempt(self) -> Attempt:
        return Attempt(
            self._around,
            self.record,
            self._config,
            self._counting,
            self._fingerprint,
            self._weights,
        )
