"""What a plan is made from. ``placing`` makes it, which loads NumPy."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.placement.keeping import Holding
from potluck.placement.links import LinkTable
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import NodeReport
from potluck.types.placement import Preferences
from potluck.types.speed import NodeSpeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """What is known of the nodes that a model may be placed on, and what the plan is for.

    ``reports`` are of all nodes, ``able`` those of the nodes that can read the model, with the
    units that may be used. ``speeds`` are by node, of those that answered. Steps start and end at
    the ``coordinator``. ``held`` are the stages of this deployment that workers hold already;
    ``in_use``: see ``keeping.kept``. With ``is_anew`` the plan is as good as if nothing was held.
    ``links`` are known where no node measures them; None takes those of ``speeds``.
    """

    reports: Sequence[NodeReport]
    able: Sequence[NodeReport]
    coordinator: NodeId
    preferences: Preferences
    speeds: Mapping[NodeId, NodeSpeeds] = field(default_factory=dict)
    held: Sequence[Holding] = ()
    in_use: Collection[tuple[NodeId, UnitId, int, int]] = ()
    is_anew: bool = False
    links: LinkTable | None = None
