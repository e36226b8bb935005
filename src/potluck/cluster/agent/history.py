"""Logs what happens to nodes and deployments as events.

A leaving node announces it to the others, so that they do not report it as lost. So does a node
when one of its units fails or recovers.
"""

from __future__ import annotations

import asyncio
import logging

from potluck.cluster.agent.deployment_history import DeploymentHistory
from potluck.cluster.agent.event_log import EventLog
from potluck.cluster.agent.node_history import NodeHistory
from potluck.cluster.background import Spawn
from potluck.cluster.calls import UnitChange, decode, encode
from potluck.cluster.membership import Membership, MethodTable
from potluck.errors import CallError
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import EventKind
from potluck.types.deployment import DeploymentRecord
from potluck.types.node import NodeReport
from potluck.uname import host_name

_log = logging.getLogger(__name__)

METHOD = "node.farewell"
UNIT_METHOD = "node.unit_changed"

_UNIT_SECONDS = 10.0
"""The time for a busy node to handle it. One that does not learns of it when its page is open."""

_ENDS = {
    EventKind.LEFT: "left",
    EventKind.LOST: "was lost: it stopped, or can no longer be reached",
}

_FAREWELL_SECONDS = 0.5
"""The longest wait for the other nodes when leaving."""


class History:
    """Turns changes into events and logs them. For use in the agent's event loop."""

    def __init__(self, membership: Membership, *, spawn: Spawn) -> None:
        self.log = EventLog()
        self._membership = membership
        self._spawn = spawn
        self._nodes = NodeHistory()
        self._deployments = DeploymentHistory(self._nodes.name)
        self._refused: frozenset[NodeId] | None = None

    def register(self, methods: MethodTable) -> None:
        """Register the calls."""
        methods.register_for_caller(METHOD, self._on_farewell)
        methods.register_for_caller(UNIT_METHOD, self._on_unit_changed)

    async def announce_leaving(self) -> None:
        """Tell the others that this node is leaving, without waiting for long."""
        await asyncio.gather(
            *(self._tell(node, METHOD, b"", _FAREWELL_SECONDS) for node in self._membership.nodes())
        )

    def unit_changed(self, unit_id: UnitId, reason: str) -> None:
        """Log that a unit of this node is out, for ``reason``, or used again (empty), and tell all
        nodes.
        """
        change = UnitChange(node_name=host_name(), unit_id=unit_id, reason=reason)
        self._take(self._membership.node_id, change)
        for node in self._membership.nodes():
            self._spawn(self._tell(node, UNIT_METHOD, encode(change), _UNIT_SECONDS))

    def joined(self, node: NodeId) -> None:
        """Handle a node that joined."""
        self.log.add(self._nodes.joined(node))

    def left(self, node: NodeId) -> None:
        """Handle a node that left."""
        if (what := self._nodes.left(node)) is not None:
            _log.info("node %s %s", node, _ENDS[what.kind])
            self.log.add(what)

    def began_with(self, removed: frozenset[NodeId]) -> None:
        """Set the nodes that had been removed before this agent was started."""
        self._refused = removed

    def refused(self, nodes: frozenset[NodeId]) -> None:
        """Set all the nodes that have been removed by now."""
        if self._refused is None:
            return
        for node in sorted(nodes - self._refused):
            self.log.add(self._nodes.removed(node))
        self._refused = nodes

    def record_changed(self, record: DeploymentRecord) -> None:
        """Handle a new record of a deployment."""
        for what in self._deployments.record_changed(record):
            self.log.add(what)

    def reported(self, report: NodeReport) -> None:
        """Handle a report of a node."""
        for what in self._nodes.reported(report):
            self.log.add(what)

    def _take(self, node: NodeId, change: UnitChange) -> None:
        events = self._nodes.unit_changed(node, change.node_name, change.unit_id, change.reason)
        for what in events:
            self.log.add(what)

    async def _tell(self, node: NodeId, method: str, payload: bytes, seconds: float) -> None:
        try:
            await self._membership.call(node, method, payload, timeout_seconds=seconds)
        except CallError as error:
            _log.debug("%s: could not tell node %s: %s", method, node, error.message)

    async def _on_farewell(self, caller: NodeId, payload: bytes) -> bytes:
        if payload:
            _log.debug("ignored a farewell with a payload from node %s", caller)
        self._nodes.farewell(caller)
        return b""

    async def _on_unit_changed(self, caller: NodeId, payload: bytes) -> bytes:
        self._take(caller, decode(payload, UnitChange))
        return b""
