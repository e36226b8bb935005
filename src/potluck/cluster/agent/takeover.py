"""Deployments whose coordinator is gone are taken over by the nodes that are left.

They try in the order of their ids and with a pause between them, so that one that cannot (it lacks
the model's files, say) holds nobody up.
"""

from __future__ import annotations

import asyncio

from potluck.cluster.agent.background import Spawn
from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.calls import DeploymentRecord
from potluck.cluster.membership import Membership
from potluck.types.cluster import DeploymentId

_SETTLE_SECONDS = 0.2
"""For nodes that leave together to be seen to, and for a coordinator that joins anew to speak."""
_TURN_SECONDS = 3.0
"""What a successor has to say that it takes over, before the next one does."""
_AGAIN_SECONDS = 60.0


class Takeovers:
    """Takes over what is left to this node; ``run`` is its task. For use in the agent's loop."""

    def __init__(self, membership: Membership, coordination: Coordination, *, spawn: Spawn) -> None:
        self._membership = membership
        self._coordination = coordination
        self._spawn = spawn
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
        own = self._membership.node_id
        try:
            await self._coordination.isolation.over()
            turn = sum(node < own for node in self._membership.nodes())
            await asyncio.sleep(_SETTLE_SECONDS + turn * _TURN_SECONDS)
            while (record := self._orphan(deployment)) is not None:
                if await self._coordination.take_over(record):
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            self._awaiting_turn.discard(deployment)

    def _orphan(self, deployment: DeploymentId) -> DeploymentRecord | None:
        for record in self._coordination.orphans():
            if record.deployment == deployment:
                return record
        return None
