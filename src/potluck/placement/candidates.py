"""A unit on which a stage may be placed, with everything that placement needs to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.placement.group_times import GroupTimes
from potluck.placement.speed import UnitSpeed, unit_speed
from potluck.placement.times import UnitTimes
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId, UnitId
from potluck.types.groups import GroupPart
from potluck.types.node import UnitReport
from potluck.types.placement import ModelCost

DividedCost = Callable[[GroupPart], ModelCost]
"""Returns the cost of each part of a model on the group member that holds this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A unit, the memory that stages may use on it, and the cost and time of each part of the
    model.

    Candidates with equal ``cost`` and ``times`` may share these objects; values derived from them
    are then computed once. ``divided_cost`` is the cost on this unit as a member of a group; None
    if the unit cannot join a group.

    A candidate may also be a group, with its ``members`` in order, each with its own cost, and the
    ``shares`` by which they divide stages. It is named after its leader, and its memory is measured
    as a fraction of that of its fullest member (in units of 1 / ``grouping.FULL``).
    """

    node_id: NodeId
    unit_id: UnitId
    usable_bytes: int
    cost: ModelCost
    times: UnitTimes | GroupTimes
    divided_cost: DividedCost | None = None
    members: tuple[Candidate, ...] = ()
    shares: tuple[int, ...] = ()


def speed_of(unit: UnitReport, arithmetic: Arithmetic) -> UnitSpeed:
    """Return how fast a unit is according to its own report, when it computes in ``arithmetic``."""
    return unit_speed(
        unit.rates,
        unit.figures,
        is_shared=unit.is_shared,
        usable_share=unit.usable_share,
        quota_period_seconds=unit.quota_period_seconds,
        arithmetic=arithmetic,
    )
