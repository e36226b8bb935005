"""Logs what happens to nodes and deployments as events.

A leaving node announces it to the others, so that they do not report it as lost. So does a node
when one of its units fails or recovers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from potluck.cluster.agent.deployment_history import DeploymentHistory
from potluck.cluster.background import Spawn
from potluck.cluster.network.membership import Membership, MethodTable
from potluck.cluster.wire.calls import UnitChange
from potluck.cluster.wire.methods import FAREWELL, UNIT_CHANGED
from potluck.host.uname import host_name
from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import ClusterEvent, EventContent, EventKind
from potluck.types.deployment import DeploymentRecord
from potluck.types.node import NodeReport
from potluck.types.unit import Role

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


class NodeHistory:
    """Derives events of nodes and their units from changes and reports. Pure.

    A node announces that it is leaving (``farewell``); one that disappears without is reported as
    lost. Host names are known once a node has reported.
    """

    def __init__(self) -> None:
        self._names: dict[NodeId, str] = {}
        self._leaving: set[NodeId] = set()
        self._removed: set[NodeId] = set()
        self._out: dict[NodeId, Mapping[UnitId, str]] = {}

    def name(self, node: NodeId) -> str:
        """Return the name of a node for messages: its host name, if known, or its id."""
        return self._names.get(node) or f"node {node}"

    def joined(self, node: NodeId) -> EventContent:
        """Return the event of a node that joined."""
        self._leaving.discard(node)
        return EventContent(
            kind=EventKind.JOINED, message=f"Node {node} joined the cluster.", node_id=node
        )

    def farewell(self, node: NodeId) -> None:
        """Record that a node is about to leave."""
        self._leaving.add(node)

    def left(self, node: NodeId) -> EventContent | None:
        """Return the event of a node that left; None if its removal was reported."""
        name = self._sentence_name(node)
        was_leaving = node in self._leaving
        self._leaving.discard(node)
        self._out.pop(node, None)
        self._names.pop(node, None)
        if node in self._removed:
            return None
        if was_leaving:
            return EventContent(
                kind=EventKind.LEFT, message=f"{name} left the cluster.", node_id=node
            )
        message = f"{name} {_ENDS[EventKind.LOST]}."
        return EventContent(kind=EventKind.LOST, message=message, node_id=node)

    def removed(self, node: NodeId) -> EventContent:
        """Return the event of a node that was permanently removed from the cluster."""
        name = self._sentence_name(node)
        self._removed.add(node)
        return EventContent(
            kind=EventKind.REMOVED, message=f"{name} was removed from the cluster.", node_id=node
        )

    def reported(self, report: NodeReport) -> tuple[EventContent, ...]:
        """Return the events of a node's units since its last report.

        The first report of a node causes none: a unit that is out then may never have worked.
        """
        self._names[report.node_id] = report.name
        out = {each.unit_id: each.reason for each in report.units if each.role is Role.OUT}
        before = self._out.get(report.node_id)
        self._out[report.node_id] = out
        if before is None:
            return ()
        there = {each.unit_id for each in report.units}
        return (
            *(
                self._unit_out(report.node_id, unit, reason)
                for unit, reason in out.items()
                if unit not in before
            ),
            *(
                self._unit_back(report.node_id, unit)
                for unit in before
                if unit not in out and unit in there
            ),
        )

    def unit_changed(
        self, node: NodeId, name: str, unit: UnitId, reason: str
    ) -> tuple[EventContent, ...]:
        """Return the events of a change of a unit of the node, whose host name is ``name``.

        An empty ``reason`` means that the unit is used again. What its last report said is not
        repeated.
        """
        self._names[node] = name
        known = self._out.get(node)
        if known is not None:
            if (unit in known) == bool(reason):
                return ()
            others = {each: why for each, why in known.items() if each != unit}
            self._out[node] = {**others, unit: reason} if reason else others
        if reason:
            return (self._unit_out(node, unit, reason),)
        return (self._unit_back(node, unit),)

    def _unit_out(self, node: NodeId, unit: UnitId, reason: str) -> EventContent:
        return EventContent(
            kind=EventKind.UNIT_OUT,
            message=f"{unit} on {self.name(node)} is out: {reason.removesuffix('.')}.",
            node_id=node,
            details={"unit_id": unit, "reason": reason},
        )

    def _unit_back(self, node: NodeId, unit: UnitId) -> EventContent:
        return EventContent(
            kind=EventKind.UNIT_BACK,
            message=f"{unit} on {self.name(node)} works again.",
            node_id=node,
            details={"unit_id": unit},
        )

    def _sentence_name(self, node: NodeId) -> str:
        name = self._names.get(node)
        return f"Node {node}" if name is None else f"Node {node} ({name})"


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

    def removed(self, node: NodeId) -> None:
        """Handle a node that was removed from the cluster."""
        self.log.add(self._nodes.removed(node))

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
