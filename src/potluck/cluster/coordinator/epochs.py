"""Drives the state machine of a deployment (``coordinator.machine``) through its epochs.

The state machine decides what to do next; this module does it in the agent's event loop and reports
the result to the machine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

import msgspec

from potluck.cluster.background import Background, is_set_within
from potluck.cluster.coordinator import actions, events, machine
from potluck.cluster.coordinator.actions import Action
from potluck.cluster.coordinator.attempt import Attempt
from potluck.cluster.coordinator.attempt_runner import AttemptRunner
from potluck.cluster.coordinator.epoch_end import EpochEnds
from potluck.cluster.coordinator.events import Event
from potluck.cluster.coordinator.excluded_units import StageError, StageStalledError
from potluck.cluster.coordinator.published_record import PublishedRecord
from potluck.cluster.coordinator.rebalancing import Rebalancing
from potluck.cluster.coordinator.releasing import release_others
from potluck.cluster.coordinator.request_queue import RequestQueue
from potluck.cluster.coordinator.upkeep import Upkeep
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import StageLost
from potluck.errors import DefectError, EngineError, PotluckError
from potluck.placement.planned import PlannedModel
from potluck.types.cluster import Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

_log = logging.getLogger(__name__)

_END_SECONDS = 10.0
"""The time for running tasks to finish when the deployment ends here; none of them waits for
long."""
DRAIN_SECONDS = 30.0
"""The time for a deployment to leave a node, and for sequences in flight to finish."""


class Epochs:
    """Begins and ends the epochs of one deployment. For use in the agent's loop.

    ``served`` is the attempt that serves, or the last one that did; ``attempts`` runs the next one.
    ``ends`` remembers what the ends of epochs said about units. ``on_record`` is called with a
    record that supersedes this deployment's, if a node has one.
    """

    def __init__(
        self,
        membership: Membership,
        make_attempt: Callable[[], Attempt],
        published: PublishedRecord,
        ends: EpochEnds,
        requests: RequestQueue,
        rebalancing: Rebalancing,
        upkeep: Upkeep,
        background: Background,
        *,
        on_record: Callable[[DeploymentRecord], None],
        clock: Callable[[], float],
    ) -> None:
        self._membership = membership
        self._published = published
        self._ends = ends
        self._requests = requests
        self._rebalancing = rebalancing
        self._upkeep = upkeep
        self._background = background
        self._clock = clock
        self._state = machine.State(epoch=published.record.epoch)
        self.attempts = AttemptRunner(
            membership,
            make_attempt,
            published,
            ends,
            background,
            state=lambda: self._state,
            handle=self._handle,
            cleared=self._cleared,
            on_record=on_record,
            clock=clock,
        )
        self.served = self.attempts.attempt
        self._first: asyncio.Future[None] | None = None
        self._clearing: asyncio.Task[None] | None = None
        self._leaving: dict[NodeId, asyncio.Event] = {}
        self._better: PlannedModel | None = None  # the plan of a requested move
        self._lost_at: float | None = None

    async def start(self) -> None:
        """Begin the first epoch; return once it serves.

        Raises the error that prevents the deployment, also when that is its removal.
        """
        self._first = asyncio.get_running_loop().create_future()
        self._state = machine.State(epoch=self._published.record.epoch, is_first=True)
        self._handle(events.DeploymentStarted())
        await self._first

    def resume(self) -> None:
        """Begin an epoch after those of a coordinator that was lost or is leaving."""
        self._lost_at = self._clock()
        self._handle(events.DeploymentStarted(reason="its coordinator was lost"))

    def end(self) -> None:
        """Begin no more epochs; await ``finish`` afterwards."""
        self._handle(events.Ended())
        if self._first is not None and not self._first.done():
            model_id = self._published.record.model_id
            self._first.set_exception(
                EngineError(f"{model_id} was removed while it was being deployed")
            )

    async def finish(self) -> None:
        """Wait for the tasks of the deployment to finish; none of them waits for long."""
        num_unwilling = await self._background.end(self._clearing, timeout_seconds=_END_SECONDS)
        if num_unwilling:
            _log.error("%s: %d tasks did not end", self._published.record.model_id, num_unwilling)

    async def vacate(self, node_id: NodeId) -> None:
        """Move to a plan without a node; return when that is done or impossible."""
        vacated = self._leaving.setdefault(node_id, asyncio.Event())
        self._handle(events.LeaveRequested(node_id=node_id))
        await is_set_within(vacated, DRAIN_SECONDS)

    def stage_lost(self, lost: StageLost) -> None:
        """Handle a worker that ended by itself."""
        attempt = self.attempts.attempt.record
        is_starting = attempt.epoch == lost.epoch and self._state.phase in machine.STARTING
        record = attempt if is_starting else self._published.record
        error: PotluckError
        if (is_starting or lost.has_stalled) and 0 <= lost.index < len(record.stages):
            kind = StageStalledError if lost.has_stalled else StageError
            unit_id = record.stages[lost.index].unit_id
            error = kind(lost.index, lost.node_id, unit_id, lost.message)
        else:
            error = EngineError(f"stage {lost.index} on node {lost.node_id}: {lost.message}")
        self._lost(lost.epoch, error)

    def _lost(self, epoch: Epoch, error: PotluckError) -> None:
        is_in_use = self._requests.load.num_sequences > 0
        self._handle(events.StageLost(epoch=epoch, error=error, is_in_use=is_in_use))

    def node_left(self, node_id: NodeId) -> None:
        """Handle a node that has left."""
        error = EngineError(f"node {node_id} was lost")
        self._handle(events.NodeLeft(node_id=node_id, error=error))

    def node_joined(self) -> None:
        """Handle a node that has joined: there may be room for the model, or a better plan."""
        self.attempts.misfit = None  # requests wait for the plan with it
        self._handle(events.NodeJoined())

    @property
    def is_over(self) -> bool:
        """Return whether there will be no more epochs."""
        return self._state.phase is machine.Phase.OVER

    @property
    def in_force(self) -> Attempt | None:
        """Return the attempt whose plan serves; None between two plans."""
        attempt, serving = self.served, self._state.serving
        return attempt if serving and serving.epoch == attempt.record.epoch else None

    def placed(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return ``record`` with the epoch and stages of the last attempt, once that is in
        force.
        """
        serving = self._state.serving
        if serving is None or serving.epoch == self.attempts.attempt.record.epoch:
            return self.attempts.attempt.placed(record)
        return record

    def begin_move(self, planned: PlannedModel, reason: str) -> None:
        """Move to a plan that was just made, unless something else is in progress."""
        self._better = planned
        nodes = frozenset(stage.node_id for stage in planned.stages)
        self._handle(events.MoveWanted(nodes=nodes, reason=reason, needs_room=planned.needs_room))

    # Events in, actions out.

    def _handle(self, event: Event) -> None:
        following = machine.apply(self._state, event, self._clock())
        self._state = following.state
        for action in following.actions:
            try:
                self._carry_out(action)
            except Exception:  # noqa: BLE001 - the other actions have nothing to do with it
                model_id = self._published.record.model_id
                _log.exception("%s: %s failed", model_id, type(action).__name__)
        if isinstance(event, events.Failed):
            self._requests.end_waits()

    def _carry_out(self, action: Action) -> None:
        match action:
            case actions.MakePlan() | actions.Claim() | actions.Load() | actions.Connect():
                self.attempts.run(action)
            case actions.Serve():
                self._serve()
            case actions.Detach(error=error):
                self._detach(error)
            case actions.Cancel():
                self.attempts.cancel()
            case actions.Examine(attempt=number, error=error):
                self._background.spawn(self.attempts.failed(number, error))
            case actions.Pause(attempt=number, seconds=seconds):
                self._background.spawn(self.attempts.pause(number, seconds))
            case actions.ReportState(state=state, reason=reason):
                self._published.publish_state(state, reason)
            case actions.FailDeployment(error=error):
                if self._first is not None and not self._first.done():
                    self._first.set_exception(self._ends.with_outages(error))
            case actions.Vacated(nodes=nodes):
                for node in nodes & self._leaving.keys():
                    self._leaving.pop(node).set()
            case actions.UsePlan():
                self._take_plan()
            case actions.MoveOver(reason=reason):
                self._move_over(reason)
            case actions.ReleaseUnused(epoch=epoch):
                self._release_unused(epoch)

    def _take_plan(self) -> None:
        planned, self._better = self._better, None
        if planned is not None:
            self.attempts.adopt(planned)

    def _move_over(self, failure: str) -> None:
        is_lost = self._state.serving is None
        if failure and is_lost and self._published.record.epoch == self.served.record.epoch:
            # from now on, report the plan that was lost, not the abandoned one
            self.attempts.attempt = self.served
        self._rebalancing.move_over(failure)

    def _release_unused(self, epoch: Epoch) -> None:
        """Continue with the plan in force as if there had been no attempt since."""
        self.attempts.attempt = self.served
        # Stages requested at a higher epoch are only released at that epoch.
        superseded = msgspec.structs.replace(self.served.record, epoch=epoch)
        self._background.spawn(release_others(self._membership, superseded, self.served.stages))

    def _serve(self) -> None:
        """Continue every sequence, now that the edges are open."""
        attempt = self.attempts.attempt
        epoch, loop = attempt.record.epoch, asyncio.get_running_loop()

        def over(error: PotluckError) -> None:
            with suppress(RuntimeError):  # the loop is closed, and so is everything else
                loop.call_soon_threadsafe(self._lost, epoch, error)

        def committed() -> None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._handle, events.TokenCommitted(epoch=epoch))

        self._requests.attach(attempt.limits, attempt.pipeline_opener(committed), over)
        self.served = attempt
        self._ends.served()
        self.attempts.served()
        gain = self._rebalancing.gain_under_way
        if gain is not None:
            self._published.note_move(gain)
        self._rebalancing.serves()
        if self._lost_at is not None:
            self._published.note_recovery(self._clock() - self._lost_at)
        self._lost_at = None
        self._upkeep.served(attempt)
        if self._first is not None and not self._first.done():
            self._first.set_result(None)

    # The end of an epoch.

    def _detach(self, error: PotluckError | None) -> None:
        """Stop forming steps; then determine what the end of the epoch means for units and
        requests.
        """
        if error is not None:
            self.attempts.warn(error.message)
            self._lost_at = self._clock() if self._lost_at is None else self._lost_at
        self._requests.stop()
        self._rebalancing.pauses()
        clearing = self._clear(self._clearing, error, self._published.record)
        self._clearing = self._background.spawn(clearing)

    async def _clear(
        self,
        earlier: asyncio.Task[None] | None,
        error: PotluckError | None,
        record: DeploymentRecord,
    ) -> None:
        if earlier is not None:
            await asyncio.shield(earlier)
        in_flight = await self._requests.detach()
        defect = error.message if isinstance(error, DefectError) else ""
        try:
            if error is not None:
                ends = await self._ends.close(record)
                crashes = (line for each in ends.values() for line in each.crashes)
                defect = "; ".join(crashes) or defect
                self._ends.ended(error, record, ends)
        except Exception:  # noqa: BLE001 - the next epoch shall begin, whatever it is
            _log.exception("%s: error while ending an epoch", self._published.record.model_id)
        finally:
            self._requests.record_defect(in_flight, defect)

    async def _cleared(self) -> None:
        """Return once the end of the previous epoch has been examined."""
        if self._clearing is not None:
            await asyncio.shield(self._clearing)
