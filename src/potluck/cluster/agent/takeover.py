"""Takes over deployments whose coordinator is lost.

Taking over means making a plan and claiming an epoch for it, so a node that cannot plan, or is on
the wrong side of a partition, changes nothing.

No node takes over while any reachable node still sees the coordinator: then a link is cut, and the
coordinator is not lost. Otherwise the candidates try in the order of their ids. Each waits a while
for those before it, but not for those that are unable or do not answer. If two try at once, claims
of epochs decide, so waiting only avoids wasted work.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.background import Spawn
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import (
    AskCoordinatorView,
    CoordinatorView,
    DeploymentReference,
    TakeoverReadiness,
)
from potluck.cluster.wire.methods import TAKE_OVER
from potluck.errors import CallError, EngineError, PotluckError
from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.deployment import DeploymentRecord

_log = logging.getLogger(__name__)

_SETTLE_SECONDS = 0.05
"""The time for other nodes to detect what this node has just detected."""
_POLL_SECONDS = 0.2
"""The interval between rounds of questions, while others have their turn."""
NAMESAKE_SECONDS = 2.0
"""The delay after an agent's start, in which it would be told that another agent uses its id, from
a copy of its state directory: the lease and half a second (``membership.node_id_conflicts``), with
margin.
"""
_REST_SECONDS = 1.0
"""The interval while some node still sees the coordinator, or this node cannot take over."""
_AGAIN_SECONDS = 60.0
"""The delay after this node failed to take over: its files of the model may be repaired."""

TURN_SECONDS = 1.0
"""The wait per candidate before this one: the time for a plan and a claim on a small board."""

AT_WORK_SECONDS = 20.0
"""The wait for a candidate that says that it is taking over: longer than a side without most of the
voters waits (``machine.MINORITY_SECONDS``), or nobody would wait for it there."""


class Decision(enum.Enum):
    """The decision about a coordinator that this node does not see."""

    TAKE_OVER = "take over"
    WAIT = "wait"
    NOT_LOST = "not lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """Since when none of the nodes that answered has seen the coordinator; None if one does.

    Times are the caller's, in seconds of a monotonic clock.
    """

    since: float | None = None

    def decide(
        self, own: NodeId, views: Mapping[NodeId, CoordinatorView], now: float
    ) -> tuple[Vacancy, Decision]:
        """Return what to do, given the answers (``views``) of other nodes."""
        if any(each.sees_coordinator for each in views.values()):
            return Vacancy(), Decision.NOT_LOST
        since = now if self.since is None else self.since
        waited = now - since
        before = [
            node
            for node, each in views.items()
            if node < own and each.readiness is TakeoverReadiness.CANDIDATE
        ]
        is_being_taken = any(each.readiness is TakeoverReadiness.AT_WORK for each in views.values())
        patience = len(before) * TURN_SECONDS
        if is_being_taken:
            patience = max(patience, AT_WORK_SECONDS)
        decision = Decision.TAKE_OVER if waited >= patience else Decision.WAIT
        return Vacancy(since=since), decision


class Takeovers:
    """Takes over deployments; ``run`` is its task. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        *,
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._records = coordination.records
        self._spawn = spawn
        self._clock = clock
        self._started_at = clock()
        self._awaiting_turn: set[DeploymentId] = set()
        self._unable: set[DeploymentId] = set()

    async def run(self) -> None:
        """Look for deployments without a coordinator, whenever something changes."""
        while True:
            self._unable &= {record.deployment for record in self._records.live()}
            for record in self.orphans():
                if record.deployment not in self._awaiting_turn:
                    self._awaiting_turn.add(record.deployment)
                    self._spawn(self._await_turn(record.deployment))
            await self._records.changes.wait()

    async def _await_turn(self, deployment: DeploymentId) -> None:
        """Take over in this node's turn, unless another node coordinates it by then."""
        vacancy = Vacancy()
        not_before = self._clock()
        try:
            await asyncio.sleep(_SETTLE_SECONDS)
            while (record := self._orphan(deployment)) is not None:
                vacancy, decision = await self._decide(vacancy, record)
                if self._orphan(deployment) != record:
                    vacancy = Vacancy()  # the answers, or another node, brought news
                    continue
                if decision is Decision.TAKE_OVER and self._clock() >= not_before:
                    if await self.take_over(record):
                        await self._follow(deployment)
                        vacancy = Vacancy()
                        continue
                    not_before = self._clock() + _AGAIN_SECONDS
                is_next = decision is Decision.WAIT
                await asyncio.sleep(_POLL_SECONDS if is_next else _REST_SECONDS)
        finally:
            self._awaiting_turn.discard(deployment)

    async def _follow(self, deployment: DeploymentId) -> None:
        """Return when this node has taken an epoch, or is no longer a candidate.

        Other nodes may already know the new coordinator but be unable to tell this node.
        """
        while (record := self.candidacy(deployment)) is not None:
            await asyncio.sleep(_REST_SECONDS)
            _, decision = await self._decide(Vacancy(), record)
            if decision is Decision.NOT_LOST:
                self.give_up(deployment)

    async def _decide(self, vacancy: Vacancy, record: DeploymentRecord) -> tuple[Vacancy, Decision]:
        own = self._membership.node_id
        if record.epoch.coordinator == own:  # its agent was restarted, and every node sees it
            is_sure = self._clock() - self._started_at >= NAMESAKE_SECONDS
            return vacancy, Decision.TAKE_OVER if is_sure else Decision.WAIT
        views = await self._records.ask_views(record)
        for view in views.values():
            if view.record is not None:
                self._records.learn(view.record)
        return vacancy.decide(own, views, self._clock())

    def orphans(self) -> tuple[DeploymentRecord, ...]:
        """Return the records of deployments that no member coordinates."""
        if self._coordination.is_draining:
            return ()
        return tuple(record for record in self._records.live() if self._is_orphan(record))

    def _orphan(self, deployment: DeploymentId) -> DeploymentRecord | None:
        return next((each for each in self.orphans() if each.deployment == deployment), None)

    def _is_orphan(self, record: DeploymentRecord) -> bool:
        is_lost = record.epoch.coordinator not in self._membership.nodes()
        return is_lost and self._is_free(record)

    def _is_free(self, record: DeploymentRecord) -> bool:
        """Return whether the deployment is live and not coordinated here."""
        return not record.is_removed and record.deployment not in self._coordination.coordinated

    async def take_over(self, record: DeploymentRecord) -> bool:
        """Take over an orphaned deployment; return False if that is not possible now."""
        try:
            await self._adopt(record)
        except PotluckError as error:
            _log.warning("cannot take over %s: %s", record.model_id, error.message)
        except Exception:  # noqa: BLE001 - it would be left without a coordinator
            _log.exception("cannot take over %s", record.model_id)
        else:
            self._unable.discard(record.deployment)
            return True
        self._unable.add(record.deployment)
        return False

    async def _adopt(self, record: DeploymentRecord) -> None:
        """Take over another node's deployment, unless it has a coordinator by then.

        Raises an error if that is impossible here.
        """
        read, profile = await self._coordination.planner.read(record.spec.model, record)
        deployed = record.facts.fingerprint
        if deployed is not None and (found := deployed.difference(read.fingerprint)):
            raise EngineError(
                f"this node's files of the model differ from those that were deployed: {found}"
            )
        latest = self._records.get(record.deployment)
        if latest is None or self._coordination.is_draining:
            return
        own = self._membership.node_id
        if self._is_orphan(latest) or (latest.status.successor == own and self._is_free(latest)):
            self._coordination.resume(latest.with_status(successor=None), read, profile)

    def candidacy(self, deployment: DeploymentId) -> DeploymentRecord | None:
        """Return the record with which a deployment is being taken over here; None if it is not."""
        mine = self._coordination.coordinated.get(deployment)
        if mine is None or mine.record.epoch.coordinator == self._membership.node_id:
            return None
        return mine.record

    def joined(self, node: NodeId) -> None:
        """Handle a node that joined: what it coordinates is not taken over. Call this first."""
        for deployment in list(self._coordination.coordinated):
            candidacy = self.candidacy(deployment)
            if candidacy is not None and candidacy.epoch.coordinator == node:
                self.give_up(deployment)

    def give_up(self, deployment: DeploymentId) -> None:
        """Stop taking over a deployment whose coordinator is back, if no epoch was taken yet.

        So a deployment that continued on the other side of a partition is not disturbed after it
        heals.
        """
        if self.candidacy(deployment) is not None:
            self._coordination.let_go(deployment)

    def view(self, question: AskCoordinatorView) -> CoordinatorView:
        """Return this node's view of a deployment whose coordinator another node does not see."""
        record = self._records.get(question.deployment)
        if record is None:
            return CoordinatorView(sees_coordinator=False, readiness=TakeoverReadiness.UNABLE)
        return CoordinatorView(
            sees_coordinator=self._records.sees_coordinator(question.deployment, question.known),
            readiness=self._readiness(question.deployment),
            record=None if record.epoch == question.known else record,
        )

    def _readiness(self, deployment: DeploymentId) -> TakeoverReadiness:
        if deployment in self._coordination.coordinated:
            return TakeoverReadiness.AT_WORK
        if self._coordination.is_draining or deployment in self._unable:
            return TakeoverReadiness.UNABLE
        return TakeoverReadiness.CANDIDATE

    async def hand_over(self, deployment: Deployment) -> bool:
        """Let another node coordinate a deployment of this one; return False if none can.

        The successor makes a plan, claims an epoch, to which all nodes agree because it was named
        the successor, and serves. Sequences of all gateways, this node's included, move there.
        """
        own_id = deployment.record.deployment
        on_stages = {stage.node_id for stage in deployment.record.stages}
        for node in sorted(
            self._membership.nodes(), key=lambda each: (each not in on_stages, each)
        ):
            if self._coordination.coordinated.get(own_id) is not deployment:
                return True  # it was removed, or another node has taken it over
            deployment.name_successor(node)
            await self._records.tell_everybody(deployment.record)
            try:
                await TAKE_OVER.call(self._membership, node, DeploymentReference(deployment=own_id))
            except CallError as error:
                _log.info(
                    "node %s cannot take over %s: %s",
                    node,
                    deployment.record.model_id,
                    error.message,
                )
                continue
            return True
        return self._coordination.coordinated.get(own_id) is not deployment

    async def succeed(self, deployment: DeploymentId) -> None:
        """Coordinate a deployment at its coordinator's request; return once it serves."""
        self._coordination.require_staying()
        record = self._records.get(deployment)
        own = self._membership.node_id
        if record is None or own not in (record.status.successor, record.epoch.coordinator):
            raise EngineError(f"this node is not the successor of deployment {deployment}")
        if deployment not in self._coordination.coordinated:
            await self._adopt(record)
        while not self._serves_here(deployment):
            if deployment not in self._coordination.coordinated:
                raise EngineError(f"{record.model_id} was removed, or taken over by another node")
            await self._records.changes.wait()

    def _serves_here(self, deployment: DeploymentId) -> bool:
        record = self._records.get(deployment)
        return (
            record is not None
            and record.epoch.coordinator == self._membership.node_id
            and record.is_ready
        )
