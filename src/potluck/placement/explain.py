"""Why a plan is as it is: what its unused units would add, and what one unit more or less changes.

Pure. The alternatives are plans of the same model on other sets of units, made as the plan was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId, UnitId
from potluck.types.placement import PlacedStage, Prediction, Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another plan, on one unit fewer or one more.

    ``node_id`` and ``unit_id`` name the unit that it goes without, or the one that the added unit
    is like; ``added_node`` is the node of the latter, which no cluster has.
    """

    node_id: NodeId
    unit_id: UnitId
    stages: tuple[PlacedStage, ...]
    prediction: Prediction
    added_node: NodeId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What there is to say about a plan.

    ``rejections`` are the units that it leaves out, with reasons. ``added_seconds`` says of those
    that could take part how much longer a token would take if they did. The alternatives are None
    where there is none.
    """

    rejections: tuple[Rejection, ...]
    added_seconds: Mapping[tuple[NodeId, UnitId], float] = field(default_factory=dict)
    one_unit_fewer: Alternative | None = None
    one_unit_more: Alternative | None = None
