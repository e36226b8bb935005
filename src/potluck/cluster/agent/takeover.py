"""Takes over deployments whose coordinator is lost.

``succession`` decides when it is this node's turn. Taking over means making a plan and claiming an
epoch for it, so a node that cannot plan, or is on the wrong side of a partition, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.coordinator_views import CoordinatorViews
from potluck.cluster.agent.succession import Decision, Vacancy
from potluck.cluster.background import Spawn
from potluck.cluster.membership import Membership
from potluck.types.cluster import DeploymentId
from potluck.types.deployment import DeploymentRecord

_SETTLE_SECONDS = 0.05
"""The time for other nodes to detect what this node has just detected."""
_POLL_SECONDS = 0.2
"""The interval between rounds of questions, while others have their turn."""
NAMESAKE_SECONDS = 2.0
"""The delay after an agent's start, in which it would be told that another agent uses its id, from
a copy of its state directory: the lease and half a second (``membership.namesakes``), with margin.
"""
_REST_SECONDS = 1.0
"""The interval while some node still sees the coordinator, or this node cannot take over."""
_AGAIN_SECONDS = 60.0
"""The delay after this node failed to take over: its files of the model may be repaired."""


class Takeovers:
    """Takes over deployments; ``run`` is its task. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        views: CoordinatorViews,
        *,
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._views = views
        self._spawn = spawn
        self._clock = clock
        self._started_at = clock()
        self._awaiting_turn: set[DeploymentId] = set()

    async def run(self) -> None:
        """Look for deployments without a coordinator, whenever something changes."""
        while True:
            for record in self._coordination.orphans():
                if record.deployment not in self._awaiting_turn:
                    self._awaiting_turn.add(record.deployment)
                    self._spawn(self._await_turn(record.deployment))
            await self._coordination.changes.wait()

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
                    if await self._coordination.take_over(record):
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
        while (record := self._coordination.candidacy(deployment)) is not None:
            await asyncio.sleep(_REST_SECONDS)
            _, decision = await self._decide(Vacancy(), record)
            if decision is Decision.NOT_LOST:
                self._coordination.give_up(deployment)

    async def _decide(self, vacancy: Vacancy, record: DeploymentRecord) -> tuple[Vacancy, Decision]:
        own = self._membership.node_id
        if record.epoch.coordinator == own:  # its agent was restarted, and every node sees it
            is_sure = self._clock() - self._started_at >= NAMESAKE_SECONDS
            return vacancy, Decision.TAKE_OVER if is_sure else Decision.WAIT
        views = await self._views.ask(record)
        for view in views.values():
            if view.record is not None:
                self._coordination.learn(view.record)
        return vacancy.decide(own, views, self._clock())

    def _orphan(self, deployment: DeploymentId) -> DeploymentRecord | None:
        for record in self._coordination.orphans():
            if record.deployment == deployment:
                return record
        return None
