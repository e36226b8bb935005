"""Derives events of nodes and their units, as seen by this node. Pure.

A node announces that it is leaving (``farewell``); one that disappears without is reported as lost.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.types.cluster import NodeId, UnitId
from potluck.types.cluster_events import EventContent, EventKind
from potluck.types.node import NodeReport
from potluck.types.unit import Role


class NodeHistory:
    """Derives events from changes and reports. Host names are known once a node has reported."""

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
        return EventContent(
            kind=EventKind.LOST,
            message=f"{name} was lost: it stopped, or can no longer be reached.",
            node_id=node,
        )

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
