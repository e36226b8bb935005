"""Identifiers in the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import NewType

NodeId = NewType("NodeId", str)
"""16 hexadecimal digits, stored in the node's state directory and stable across restarts."""

UnitId = NewType("UnitId", str)
"""A unit of a node, such as ``cpu/native``."""

NodeUnitId = tuple[NodeId, UnitId]
"""A unit of the cluster."""

DeploymentId = NewType("DeploymentId", str)

WIRE_VERSION = 9
"""Version of frames and control messages. Nodes with different versions cannot work together."""

SAME_VERSION = "install the same version of Potluck on every node"
"""The hint of errors that different versions cause."""


class OnUnit:
    """A value with the ids of a unit and its node."""

    __slots__ = ()
    node_id: NodeId
    unit_id: UnitId

    @property
    def unit(self) -> NodeUnitId:
        """Return both ids."""
        return self.node_id, self.unit_id


@total_ordering
@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The version of a deployment's plan, ordered by number and then by coordinator.

    A message with a lower epoch than the highest one seen is rejected.
    """

    number: int
    coordinator: NodeId

    def __lt__(self, other: Epoch) -> bool:
        return (self.number, self.coordinator) < (other.number, other.coordinator)
