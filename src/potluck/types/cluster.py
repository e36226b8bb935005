"""Names of the cluster's parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import NewType

NodeId = NewType("NodeId", str)
"""Stable over restarts: 16 hexadecimal digits kept in the node's state directory."""

UnitId = NewType("UnitId", str)
"""A unit of a node, such as ``cpu/native``."""

DeploymentId = NewType("DeploymentId", str)

WIRE_VERSION = 4
"""Of frames and control messages. Nodes of different versions do not work together."""


@total_ordering
@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """Which plan of a deployment is in force: ordered by number, then by coordinator.

    A message that carries a lower epoch than the highest one seen is rejected.
    """

    number: int
    coordinator: NodeId

    def __lt__(self, other: Epoch) -> bool:
        return (self.number, self.coordinator) < (other.number, other.coordinator)
