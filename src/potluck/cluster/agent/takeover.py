"""Deployments whose coordinator is lost are taken over by a node that is left.

When it is whose turn is decided in ``succession``. Taking over means to make a plan and to claim
an epoch for it, so a node that cannot plan, or that is on the wrong side of a cut, changes nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.outlooks import Outlooks
from potluck.cluster.agent.succession import Decision, Vacancy
from potluck.cluster.background import Spawn
from potluck.cluster.calls import DeploymentRecord
from potluck.cluster.membership import Membership
from potluck.types.cluster import DeploymentId

_SETTLE_SECONDS = 0.05
"""For the others to see what this node has just seen."""
_POLL_SECONDS = 0.2
"""Between two rounds of questions, while others have their turn."""
NAMESAKE_SECONDS = 2.0
"""For an agent that starts to be told that another one runs under its id, from a copy of its state
directory: the lease and half a second (``membership.namesakes``), with room."""
_REST_SECONDS = 1.0
"""The same while some node still sees the coordinator, or when this node cannot take over."""
_AGAIN_SECONDS = 60.0
"""After this node could not take over: its files of the model may be mended."""


class Takeovers:
    """Takes over what is left to this node; ``run`` is its task. For use in the agent's loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        outlooks: Outlooks,
        *,
        spawn: Spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._outlooks = outlooks
        self._spawn = spawn
        self._clock = clock
        self._started_at = clock()
        self._awaiting_turn: set[DeploymentId] = set()

    async def run(self) -> None:
        """Look for deployments that lack a coordinator, whenever something changes."""
        while True:
            for record in self._coordination.orphans():
                if record.deployment not in self._awaiting_turn:
                    self._awaiting_turn.add(record.deployment)
                    self._spawn(self._await_turn(record.deployment))
            await self._coordination.changes.wait()

    async def _await_turn(self, deployment: DeploymentId) -> None:
        """Take over in this node's turn, unless somebody else coordinates it by then."""
        vacancy = Vacancy()
        not_before = self._clock()
        try:
            await asyncio.sleep(_SETTLE_SECONDS)
            while (record := self._orphan(deployment)) is not None:
                vacancy, decision = await self._decide(vacancy, record)
                if self._orphan(deployment) != record:
                    vacancy = Vacancy()  # the answers, or others meanwhile, brought news
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
        """Return when this node has taken an epoch, or is no candidate any more.

        Others may know by now who coordinates it, and cannot tell if a link is cut.
        """
        while (record := self._coordination.candidacy(deployment)) is not None:
            await asyncio.sleep(_REST_SECONDS)
            _, decision = await self._decide(Vacancy(), record)
            if decision is Decision.NOT_LOST:
                self._coordination.give_up(deployment)

    async def _decide(self, vacancy: Vacancy, record: DeploymentRecord) -> tuple[Vacancy, Decision]:
        own = self._membership.node_id
        if record.epoch.coordinator == own:  # its agent was restarted, and everybody sees it
            is_sure = self._clock() - self._started_at >= NAMESAKE_SECONDS
            return vacancy, Decision.TAKE_OVER if is_sure else Decision.WAIT
        outlooks = await self._outlooks.ask(record)
        for outlook in outlooks.values():
            if outlook.record is not None:
                self._coordination.heard(outlook.record)
        return vacancy.decide(own, outlooks, self._clock())

    def _orphan(self, deployment: DeploymentId) -> DeploymentRecord | None:
        for record in self._coordination.orphans():
            if record.deployment == deployment:
                return record
        return None
