"""Logs what happens to nodes and deployments as events.

A leaving node announces it to the others, so that they do not report it as lost. So does a node
when one of its units fails or recovers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from potluck.cluster.agent.deployment_history import DeploymentHistory
from potluck.cluster.agent.node_history import NodeHistory
from potluck.cluster.background import Spawn
from potluck.cluster.calls import UnitChange
from potluck.cluster.membership import Membership, MethodTable
from potluck.cluster.methods import FAREWELL, UNIT_CHANGED
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import ClusterEvent, EventContent, EventKind
from potluck.types.deployment import DeploymentRecord
from potluck.types.node import NodeReport
from potluck.uname import host_name

_log = logging.getLogger(__name__)

_ENDS = {
    EventKind.LEFT: "left",
    EventKind.LOST: "was lost: it stopped, or can no longer be reached",
}


KEPT_EVENTS = 500
MAX_MESSAGE_CHARACTERS = 1000
"""The longest message; reasons come from other nodes, and the log holds ``KEPT_EVENTS`` of them."""

_IDS_PER_SECOND = 1000
"""More event ids per second than an agent uses on average, so that ids increase across restarts."""


class EventLog:
    """The numbered log of the last events in the cluster, as noticed by this node.

    Every event is passed to ``listeners``, which must not raise. ``clock`` returns seconds since
    1970. For use in the agent's event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.listeners: set[Callable[[ClusterEvent], None]] = set()
        self._clock = clock
        self._next_id = int(clock()) * _IDS_PER_SECOND
        self._events: deque[ClusterEvent] = deque(maxlen=KEPT_EVENTS)

    def add(self, what: EventContent) -> None:
        """Log an event that happened now."""
        if len(what.message) > MAX_MESSAGE_CHARACTERS:
            what = replace(what, message=what.message[: MAX_MESSAGE_CHARACTERS - 1] + "…")
        event = ClusterEvent(event_id=self._next_id, time=self._clock(), what=what)
        self._next_id += 1
        self._events.append(event)
        for listener in list(self.listeners):
            listener(event)

    def after(self, event_id: int | None) -> tuple[ClusterEvent, ...]:
        """Return the events after the given one, or all that are kept; oldest first.

        Also returns all if the given id is in the future, because this node's clock was set back.
        """
        if event_id is None or event_id >= self._next_id:
            return tuple(self._events)
        return tuple(each for each in self._events if each.event_id > event_id)


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
        FAREWELL.serve_for_caller(methods, self._on_farewell)
        UNIT_CHANGED.serve_for_caller(methods, self._on_unit_changed)

    async def announce_leaving(self) -> None:
        """Tell the others that this node is leaving, without waiting for long."""
        await FAREWELL.call_all(self._membership, dict.fromkeys(self._membership.nodes()))

    def unit_changed(self, unit_id: UnitId, reason: str) -> None:
        """Log that a unit of this node is out, for ``reason``, or used again (empty), and tell all
        nodes.
        """
        change = UnitChange(node_name=host_name(), unit_id=unit_id, reason=reason)
        self._take(self._membership.node_id, change)
        self._spawn(self._announce(change))

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

    async def _announce(self, change: UnitChange) -> None:
        await UNIT_CHANGED.call_all(
            self._membership, dict.fromkeys(self._membership.nodes(), change)
        )

    async def _on_farewell(self, caller: NodeId, _: None) -> None:
        self._nodes.farewell(caller)

    async def _on_unit_changed(self, caller: NodeId, change: UnitChange) -> None:
        self._take(caller, change)
