"""The input of a plan. ``placing``, which loads NumPy, makes the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from potluck.placement.links import LinkTable
from potluck.placement.stage_reuse import Holding
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import NodeReport
from potluck.types.placement import Preferences
from potluck.types.speed import NodeSpeeds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """The known facts about nodes on which a model may be placed, and the purpose of the plan.

    ``reports`` are those of all nodes, ``able`` those of the nodes that can read the model, with
    their usable units. ``speeds`` has an entry for each node that answered. Steps start and end at
    the ``coordinator``. ``held`` are the stages of this deployment that workers already hold; for
    ``in_use`` see ``stage_reuse.kept``. With ``from_scratch``, the plan ignores held stages.
    ``links`` are set if the nodes do not measure them; None uses those of ``speeds``.
    """

    reports: Sequence[NodeReport]
    able: Sequence[NodeReport]
    coordinator: NodeId
    preferences: Preferences
    speeds: Mapping[NodeId, NodeSpeeds] = field(default_factory=dict)
    held: Sequence[Holding] = ()
    in_use: Collection[tuple[NodeId, UnitId, int, int]] = ()
    from_scratch: bool = False
    links: LinkTable | None = None
