"""Groups of units as candidates: placement treats a group like a single unit.

This module does not import NumPy: an agent that never plans need not load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import Cut, bytes_of, cut_of, shard_of
from potluck.placement.group_times import GroupTimes, group_links
from potluck.placement.offering import Pool, fair_shares
from potluck.placement.prediction import predict
from potluck.placement.times import UnitTimes
from potluck.types.groups import GroupPart, group_ranges
from potluck.types.placement import ModelCost, PlacedStage, Prediction

FULL = 1 << 40
"""The memory of a group: every member's memory is divided into this many parts."""
_NEVER = 2 * FULL


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The members of a group, by their indices among the candidates, the leader first."""

    members: tuple[int, ...]
    shares: tuple[int, ...]


def with_groups(
    request: PlaceRequest, groups: Sequence[Group], others: Iterable[int] | None = None
) -> PlaceRequest:
    """Return the request with groups as candidates in place of their members.

    They come before the ``others`` in order, which by default are all units in no group. If units
    of groups share memory with other units, they divide it fairly. Raise ``ValueError`` if groups
    are not possible.
    """
    grouped = {member for group in groups for member in group.members}
    if others is None:
        others = (each for each in range(len(request.candidates)) if each not in grouped)
    alone = sorted(others)
    taking = {*grouped, *alone}
    contested = [pool for pool in request.pools if pool.members & grouped]
    usable = [
        each.usable_bytes if index in taking else 0 for index, each in enumerate(request.candidates)
    ]
    in_contested = frozenset().union(*(pool.members for pool in contested))
    shared = fair_shares(usable, contested)
    units = [
        replace(each, usable_bytes=shared[index]) if index in in_contested else each
        for index, each in enumerate(request.candidates)
    ]
    places = places_of(groups, alone)
    return replace(
        request,
        candidates=(
            *(
                group_candidate(request, [units[each] for each in group.members], group.shares)
                for group in groups
            ),
            *(units[index] for index in alone),
        ),
        pools=tuple(
            Pool(
                left_bytes=pool.left_bytes,
                members=frozenset(places[index,] for index in pool.members if (index,) in places),
            )
            for pool in request.pools
            if pool not in contested
        ),
    )


def places_of(groups: Sequence[Group], others: Iterable[int]) -> dict[tuple[int, ...], int]:
    """Return the index among the candidates of ``with_groups`` of each group and each other unit.

    Keys are the members of a group; a single unit has a key with one member.
    """
    units = [*(group.members for group in groups), *((unit,) for unit in sorted(others))]
    return {own: place for place, own in enumerate(units)}


def can_join(candidate: Candidate) -> bool:
    """Return whether a candidate can be a member of a group."""
    return candidate.divided_cost is not None and isinstance(candidate.times, UnitTimes)


def group_candidate(
    request: PlaceRequest, members: Sequence[Candidate], shares: tuple[int, ...]
) -> Candidate:
    """Return a group of these candidates. Raise ``ValueError`` if one of them cannot join a
    group.
    """
    if request.divide is None:
        raise ValueError("no groups are possible")
    with_parts: list[Candidate] = []
    times: list[UnitTimes] = []
    for index, each in enumerate(members):
        if each.divided_cost is None or not isinstance(each.times, UnitTimes):
            raise ValueError(f"{each.unit_id} on {each.node_id} cannot join a group")
        part = GroupPart(member=index, shares=shares)
        with_parts.append(replace(each, cost=each.divided_cost(part)))
        times.append(each.times)
    leader = with_parts[0]
    return Candidate(
        node_id=leader.node_id,
        unit_id=leader.unit_id,
        usable_bytes=FULL,
        cost=ModelCost.largest([_in_parts(each.cost, each.usable_bytes) for each in with_parts]),
        times=GroupTimes(
            members=tuple(times),
            divided=request.divide(shares),
            links=group_links(
                [each.node_id for each in members],
                request.links,
                [each.speed.slowness for each in times],
            ),
        ),
        members=tuple(with_parts),
        shares=shares,
    )


def placed_on(candidate: Candidate, cut: Cut, num_layers: int) -> tuple[PlacedStage, ...]:
    """Return the stages of ``cut`` on a candidate: one, or one per member of a group."""
    shard = shard_of(cut.start, cut.end, num_layers)
    shards = shard.divided(candidate.shares) if candidate.members else (shard,)
    return tuple(
        PlacedStage(
            node_id=each.node_id,
            unit_id=each.unit_id,
            shard=part,
            num_bytes=bytes_of(each.cost, cut.start, cut.end),
        )
        for each, part in zip(candidate.members or (candidate,), shards, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedRequest:
    """A request with the groups of a plan as its first candidates, and the plan's stages on it."""

    request: PlaceRequest
    cuts: tuple[Cut, ...]
    groups: tuple[Group, ...] = ()


def arranged(request: PlaceRequest, stages: Sequence[PlacedStage]) -> GroupedRequest:
    """Return a request and the stages of a plan on it. Raise ``KeyError`` for an unknown unit."""
    units = {each.unit: i for i, each in enumerate(request.candidates)}
    ranges = group_ranges(stage.shard.part for stage in stages)
    runs = [stages[each.start : each.stop] for each in ranges]
    members = [tuple(units[each.unit] for each in run) for run in runs]
    groups: dict[tuple[int, ...], Group] = {}
    for run, own in zip(runs, members, strict=True):
        part = run[0].shard.part
        if part is not None:
            groups[own] = Group(members=own, shares=part.shares)
    if not groups:
        cuts = [cut_of(own[0], run[0].shard) for run, own in zip(runs, members, strict=True)]
        return GroupedRequest(request=request, cuts=tuple(cuts))
    # A plan that keeps held stages may have a stage on a unit that is also in a group.
    in_groups = {unit for own in groups for unit in own}
    on_one = {own[0] for own in members if own not in groups}
    alone = [i for i in range(len(request.candidates)) if i in on_one or i not in in_groups]
    places = places_of(tuple(groups.values()), alone)
    return GroupedRequest(
        request=with_groups(request, tuple(groups.values()), alone),
        cuts=tuple(
            cut_of(places[own], run[0].shard) for run, own in zip(runs, members, strict=True)
        ),
        groups=tuple(groups.values()),
    )


def has_room(candidate: Candidate, cut: Cut) -> bool:
    """Return whether a candidate can hold a stage."""
    return bytes_of(candidate.cost, cut.start, cut.end) <= candidate.usable_bytes


def prediction_of(request: PlaceRequest, stages: Sequence[PlacedStage]) -> Prediction:
    """Return the prediction for stages, each on one of the candidates."""
    found = arranged(request, stages)
    return predict(found.request, found.cuts)


def _in_parts(cost: ModelCost, usable_bytes: int) -> ModelCost:
    """Return a cost as parts of what a unit may use, rounded up."""

    def parts(num_bytes: int) -> int:
        return -(-num_bytes * FULL // max(1, usable_bytes))

    return ModelCost(
        layer_bytes=tuple(parts(each) for each in cost.layer_bytes),
        embedding_bytes=parts(cost.embedding_bytes),
        head_bytes=parts(cost.head_bytes),
        shared_bytes=cost.shared_bytes * FULL // max(1, usable_bytes),
        scratch_bytes=parts(cost.stage_bytes),
        process_bytes=0,
        # A group without a layer would have nothing to exchange, only more units that may fail.
        lone_embedding_bytes=_NEVER,
        lone_head_bytes=_NEVER,
        no_cuts=cost.no_cuts,
    )
