"""The input of placement: units on which a stage may be placed, and preferences.

The search is in ``place``. This module does not import NumPy: an agent that never plans need not
load it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from potluck.placement.divided_work import DividedWork
from potluck.placement.group_times import GroupTimes
from potluck.placement.links import LinkTable
from potluck.placement.offering import Pool
from potluck.placement.speed import UnitSpeed, unit_speed
from potluck.placement.times import UnitTimes
from potluck.types.arithmetic import Arithmetic
from potluck.types.cluster import NodeId, OnUnit, UnitId
from potluck.types.groups import GroupPart
from potluck.types.node import UnitReport
from potluck.types.placement import ModelCost, Preferences

DividedCost = Callable[[GroupPart], ModelCost]
"""Returns the cost of each part of a model on the group member that holds this part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(OnUnit):
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


Divide = Callable[[tuple[int, ...]], DividedWork]
"""Returns the work of a group's members, given their shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRequest:
    """A model to place on ``candidates``, and the preferences.

    Each candidate may use its bytes as if no other drew on the same memory; ``pools``, whose
    members are indices of candidates, limit what several may use together. Steps start and end at
    the ``coordinator``, and have at most ``max_step_tokens``. ``divide`` returns what the members
    of a group with given shares compute; None if there are no groups.
    """

    candidates: tuple[Candidate, ...]
    links: LinkTable
    coordinator: NodeId
    preferences: Preferences
    max_step_tokens: int
    pools: tuple[Pool, ...] = ()
    divide: Divide | None = None

    @property
    def num_layers(self) -> int:
        """Return the number of layers of the model."""
        return len(self.candidates[0].cost.layer_bytes)
