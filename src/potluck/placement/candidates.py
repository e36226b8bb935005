"""A unit that a stage may be placed on, with all that placement counts with."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.placement.speed import UnitSpeed, unit_speed
from potluck.placement.times import UnitTimes
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import UnitReport
from potluck.types.placement import ModelCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A unit, the memory that stages may use there, what parts of the model take, and how long.

    Candidates with equal ``cost`` and ``times`` may share the objects; what is derived from them is
    then computed once.
    """

    node_id: NodeId
    unit_id: UnitId
    usable_bytes: int
    cost: ModelCost
    times: UnitTimes


def speed_of(unit: UnitReport, arithmetic: Arithmetic) -> UnitSpeed:
    """Return how fast a unit is by its own report, computing in ``arithmetic``."""
    return unit_speed(
        unit.rates,
        unit.figures,
        is_shared=unit.is_shared,
        num_threads=unit.num_threads,
        usable_cores=unit.usable_cores,
        quota_period_seconds=unit.quota_period_seconds,
        arithmetic=arithmetic,
    )
