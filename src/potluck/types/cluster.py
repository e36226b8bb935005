"""Names of the cluster's parts, and the plan that joins them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import total_ordering
from typing import NewType

from potluck.types.program import Shard

NodeId = NewType("NodeId", str)
"""Stable over restarts: 16 hexadecimal digits kept in the node's state directory."""

UnitId = NewType("UnitId", str)
"""A unit of a node, such as ``cpu/native``."""

DeploymentId = NewType("DeploymentId", str)

WIRE_VERSION = 2
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOffer:
    """A unit that stages can be placed on, and the memory they may use there.

    ``spared_bytes`` is by how much less a stage takes there than a model's cost says, which is
    that of the most demanding unit.
    """

    node_id: NodeId
    unit_id: UnitId
    usable_bytes: int
    spared_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """What a model's parts take, in bytes, wherever they are placed: at most.

    ``layer_bytes``: weights and cache of each decoder layer. ``embedding_bytes`` on the first
    stage, ``head_bytes`` on the last, each with what is computed and loaded through for it alone;
    ``shared_bytes`` of the two are held once when one stage has both (a tied head is the
    embedding). ``scratch_bytes`` and ``process_bytes`` on every stage. No stage takes more than
    the sum of its parts, and an end without a layer takes ``lone_embedding_bytes`` or
    ``lone_head_bytes`` in all, which is less.
    """

    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    head_bytes: int
    shared_bytes: int
    scratch_bytes: int
    process_bytes: int
    lone_embedding_bytes: int
    lone_head_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A shard placed on a unit, and the bytes it takes there at most.

    ``is_mapped``: its weights are mapped whether or not the plan is to map them, because a worker
    holds it so already.
    """

    node_id: NodeId
    unit_id: UnitId
    shard: Shard
    num_bytes: int
    is_mapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A unit that got nothing, and why."""

    node_id: NodeId
    unit_id: UnitId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The ordered stages that together hold a whole model, and who was left out."""

    stages: tuple[PlacedStage, ...]
    rejections: tuple[Rejection, ...]
