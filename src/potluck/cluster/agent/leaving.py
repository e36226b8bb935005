"""Drains a node that is about to leave, so that others continue without it.

Its stages are first moved to other nodes while the old ones keep serving. Then the deployments it
coordinates are handed over. Last, its own clients' streams end; other coordinators continue them
meanwhile. Its clients' new requests are answered until then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from potluck.cluster.agent.coordination import Coordination
from potluck.cluster.agent.relaying import Relaying
from potluck.cluster.agent.takeover import Takeovers
from potluck.cluster.coordinator.deployment import Deployment
from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import ContinueWithout
from potluck.cluster.wire.methods import CONTINUE_WITHOUT
from potluck.errors import CallError
from potluck.types.deployment import DeploymentRecord

_log = logging.getLogger(__name__)

_VACATE_SECONDS = 90.0
"""The time for others to load what only this node holds."""
_AGAIN_SECONDS = 0.5
_STREAM_SECONDS = 30.0
"""The time for this node's clients to read their streams to the end."""


class Leaving:
    """Drains the node. For use in the agent's event loop."""

    def __init__(
        self,
        membership: Membership,
        coordination: Coordination,
        takeovers: Takeovers,
        relaying: Relaying,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._membership = membership
        self._coordination = coordination
        self._takeovers = takeovers
        self._relaying = relaying
        self._clock = clock

    async def drain(self) -> None:
        """Return when nothing depends on this node, or when the rest could not be moved away in
        time.
        """
        self._coordination.begin_drain()
        own = self._membership.node_id
        moving = [self._hand_over(each) for each in self._coordination.coordinated.values()]
        moving += [
            self._vacate(record)
            for record in self._coordination.records.live()
            if record.epoch.coordinator != own
        ]
        for result in await asyncio.gather(*moving, return_exceptions=True):
            if isinstance(result, Exception):
                _log.error("this node could not be drained", exc_info=result)
        await self._relaying.drain(_STREAM_SECONDS)

    async def _hand_over(self, deployment: Deployment) -> None:
        own, name = self._membership.node_id, deployment.record.model_id
        if self._membership.nodes():
            await deployment.continue_without(own)
            has_stage = any(stage.node_id == own for stage in deployment.record.stages)
            if not has_stage and await self._takeovers.hand_over(deployment):
                return
            _log.warning("no other node can take over %s; it stops with this node", name)
        await deployment.finish()

    async def _vacate(self, record: DeploymentRecord) -> None:
        """Ask the current coordinator to continue without this node's stages."""
        own = self._membership.node_id
        request = ContinueWithout(deployment=record.deployment, node_id=own)
        deadline = self._clock() + _VACATE_SECONDS
        while (left := deadline - self._clock()) > 0:
            try:
                await CONTINUE_WITHOUT.call(
                    self._membership, record.epoch.coordinator, request, timeout_seconds=left
                )
            except CallError as error:
                _log.info(
                    "%s cannot be served without this node: %s", record.model_id, error.message
                )
            else:
                return
            await self._coordination.records.changes.wait(_AGAIN_SECONDS)
            latest = self._coordination.records.get(record.deployment)
            if latest is None or latest.is_removed:
                return
            record = latest
            if not any(stage.node_id == own for stage in record.stages):
                return
