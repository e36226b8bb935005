"""Contiguous layers in proportion to the memory that each unit may use.

The embedding is only on the first stage and the head only on the last, so the units for these two
places are chosen among all pairs: the choice that fills the fullest unit least wins. All other
units are placed between them, larger ones first. A unit may remain unused; the plan says why.

A stage without a layer costs every token a hop and computes next to nothing, so there is none if
the model fits without it. Otherwise the embedding alone or the head alone may be a stage.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from potluck.errors import InsufficientMemoryError
from potluck.types.placement import ModelCost, PlacedStage, Plan, Rejection, UnitOffer
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes, format_count


def place(offers: Sequence[UnitOffer], cost: ModelCost) -> Plan:
    """Place a whole model on some of the units that are offered.

    The result depends on the offers alone, not on their order. Raise ``InsufficientMemoryError``,
    which says how much is missing, if the model does not fit.
    """
    bounds = [0, *(end for _, end in cost.groups)]
    grouped = replace(
        cost,
        layer_bytes=tuple(sum(cost.layer_bytes[start:end]) for start, end in cost.groups),
        no_cuts=frozenset(index for index, layer in enumerate(bounds) if layer in cost.no_cuts),
    )
    for needs_layer in (True, False):
        plan = _place(offers, grouped, needs_layer=needs_layer)
        if plan is not None:
            return replace(plan, stages=tuple(_of_layers(stage, bounds) for stage in plan.stages))
    raise does_not_fit(offers, cost)


def _of_layers(stage: PlacedStage, bounds: Sequence[int]) -> PlacedStage:
    """Return a stage of layer groups as a stage of layers."""
    shard = replace(
        stage.shard,
        start_layer=bounds[stage.shard.start_layer],
        end_layer=bounds[stage.shard.end_layer],
        num_layers=bounds[-1],
    )
    return replace(stage, shard=shard)


def _place(offers: Sequence[UnitOffer], cost: ModelCost, *, needs_layer: bool) -> Plan | None:
    """Return the plan, or None if there is none; if ``needs_layer``, every stage has a layer.

    Layers are layer groups here.
    """
    smallest = min(cost.layer_bytes) + cost.stage_bytes
    name = "one layer"
    if not needs_layer:
        ends = []
        if 0 not in cost.no_cuts:
            ends.append((cost.lone_embedding_bytes, "the embedding"))
        if len(cost.layer_bytes) not in cost.no_cuts:
            ends.append((cost.lone_head_bytes, "the head"))
        smallest, name = min([(smallest, name), *ends])
    rejections = []
    candidates = []
    for offer in sorted(offers, key=lambda offer: (-offer.usable_bytes, offer.node_id)):
        if offer.usable_bytes < smallest - offer.spared_bytes:
            reason = (
                f"{format_bytes(max(offer.usable_bytes, 0))} usable, but {name} needs "
                f"{format_bytes(smallest - offer.spared_bytes)}"
            )
            rejections.append(Rejection.of(offer, reason))
        else:
            candidates.append(offer)
    # Without this limit, hundreds of units would take hours to arrange.
    most_stages = len(cost.layer_bytes) + (0 if needs_layer else 2)
    reason = "its share of the memory is less than one layer"
    rejections += [Rejection.of(offer, reason) for offer in reversed(candidates[most_stages:])]
    del candidates[most_stages:]
    while candidates:
        arrangement = _best_arrangement(candidates, cost, needs_layer=needs_layer)
        idle = [] if arrangement is None else arrangement.idle(needs_layer=needs_layer)
        if arrangement is not None and not idle:
            stages = tuple(arrangement.stages(cost))
            return Plan(stages=stages, rejections=tuple(rejections))
        # The others may do better without the smallest; in the end only the largest is left.
        left_out = candidates[-1]
        if left_out in idle:
            reason = "its share of the memory is less than one layer"
        else:
            reason = "too small compared with the others for the embedding, the head or its layers"
        candidates.remove(left_out)
        rejections.append(Rejection.of(left_out, reason))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    offer: UnitOffer
    start_layer: int
    end_layer: int

    @property
    def num_layers(self) -> int:
        return self.end_layer - self.start_layer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrangement:
    """An order of units and their layers. ``fullest``: the largest used part of a unit's memory."""

    shares: tuple[_Share, ...]
    fullest: float

    def idle(self, *, needs_layer: bool) -> list[UnitOffer]:
        """Return the units without a layer; a first or last unit counts only if it
        ``needs_layer``.
        """
        last = len(self.shares) - 1
        return [
            share.offer
            for index, share in enumerate(self.shares)
            if share.num_layers == 0 and (needs_layer or index not in (0, last))
        ]

    def stages(self, cost: ModelCost) -> Iterator[PlacedStage]:
        for index, share in enumerate(self.shares):
            yield PlacedStage(
                node_id=share.offer.node_id,
                unit_id=share.offer.unit_id,
                shard=Shard(
                    start_layer=share.start_layer,
                    end_layer=share.end_layer,
                    num_layers=len(cost.layer_bytes),
                    has_embedding=index == 0,
                    has_head=index == len(self.shares) - 1,
                ),
                num_bytes=_used_bytes(share, index, len(self.shares), cost),
            )


def _used_bytes(share: _Share, index: int, num_stages: int, cost: ModelCost) -> int:
    """Return the total memory of a stage."""
    offer = share.offer
    if share.num_layers == 0 and num_stages > 1:
        lone = cost.lone_embedding_bytes if index == 0 else cost.lone_head_bytes
        return lone - offer.spared_bytes
    layers = sum(cost.layer_bytes[share.start_layer : share.end_layer])
    return layers + _extra_bytes(index, num_stages, cost) + _stage_bytes(offer, cost)


def _stage_bytes(offer: UnitOffer, cost: ModelCost) -> int:
    """Return the fixed cost of a stage on a unit, in addition to its parts of the model."""
    return cost.stage_bytes - offer.spared_bytes


def _extra_bytes(index: int, num_stages: int, cost: ModelCost) -> int:
    """Return what a stage holds in addition to layers."""
    is_first, is_last = index == 0, index == num_stages - 1
    shared = cost.shared_bytes if is_first and is_last else 0
    return is_first * cost.embedding_bytes + is_last * cost.head_bytes - shared


def _best_arrangement(
    candidates: Sequence[UnitOffer], cost: ModelCost, *, needs_layer: bool
) -> _Arrangement | None:
    """Return the arrangement of all candidates whose fullest unit is least full; None if none fits.

    If ends need no layer, a small unit is more useful there than idle in the middle.
    """
    arranged = (_arrange(order, cost) for order in _orders(candidates))

    def rank(arrangement: _Arrangement) -> tuple[int, float]:
        num_idle = 0 if needs_layer else len(arrangement.idle(needs_layer=False))
        return num_idle, arrangement.fullest

    return min((each for each in arranged if each is not None), key=rank, default=None)


def _orders(candidates: Sequence[UnitOffer]) -> Iterator[tuple[UnitOffer, ...]]:
    """Yield every choice of a first and a last unit, with the others between them in their
    order.
    """
    if len(candidates) == 1:
        yield tuple(candidates)
        return
    for first in candidates:
        for last in candidates:
            if first is not last:
                between = [other for other in candidates if other not in (first, last)]
                yield (first, *between, last)


def _arrange(order: Sequence[UnitOffer], cost: ModelCost) -> _Arrangement | None:
    rooms = [
        offer.usable_bytes - _stage_bytes(offer, cost) - _extra_bytes(index, len(order), cost)
        for index, offer in enumerate(order)
    ]
    # A unit without room for a layer gets no part: rounding must not assign one to it.
    smallest_layer = min(cost.layer_bytes)
    rooms = [room if room >= smallest_layer else 0 for room in rooms]
    bounds = _proportional_bounds(rooms, cost.layer_bytes)
    if bounds is None:
        bounds = _greedy_bounds(rooms, cost.layer_bytes)
    if bounds is None:
        return None
    shares = tuple(
        _Share(offer=offer, start_layer=start, end_layer=end)
        for offer, start, end in zip(order, [0, *bounds[:-1]], bounds, strict=True)
    )
    if any(end in cost.no_cuts for end in bounds[:-1]):
        return None
    fullest = 0.0
    for index, share in enumerate(shares):
        used = _used_bytes(share, index, len(shares), cost)
        usable = share.offer.usable_bytes
        if used > usable:
            return None
        if used > 0:
            fullest = max(fullest, used / usable)
    return _Arrangement(shares=shares, fullest=fullest)


def _proportional_bounds(rooms: Sequence[int], layer_bytes: Sequence[int]) -> list[int] | None:
    """Return end layers such that every unit's bytes are as near as possible to its part of the
    room.

    Return None if rounding to whole layers overfills a unit.
    """
    total_room = sum(rooms)
    sizes = [0, *accumulate(layer_bytes)]
    if total_room < sizes[-1]:
        return None
    bounds: list[int] = []
    start = 0
    for room_so_far in accumulate(rooms):
        wanted = sizes[-1] * room_so_far / total_room
        above = bisect_left(sizes, wanted, lo=start)
        near = [max(start, above - 1), min(above, len(layer_bytes))]
        end = min(near, key=lambda layer: (abs(sizes[layer] - wanted), layer))
        if sizes[end] - sizes[start] > rooms[len(bounds)]:
            return None
        bounds.append(end)
        start = end
    return bounds


def _greedy_bounds(rooms: Sequence[int], layer_bytes: Sequence[int]) -> list[int] | None:
    """Return end layers when every unit in turn takes all it can; finds a solution if there is
    one.
    """
    bounds: list[int] = []
    layer = 0
    for room in rooms:
        while layer < len(layer_bytes) and layer_bytes[layer] <= room:
            room -= layer_bytes[layer]
            layer += 1
        bounds.append(layer)
    return bounds if layer == len(layer_bytes) else None


def does_not_fit(offers: Sequence[UnitOffer], cost: ModelCost) -> InsufficientMemoryError:
    """Return the error of a model that does not fit on the units, which says how much is missing.

    If a part that cannot be divided fits on no unit, more units like these would not help, and the
    hint says what the part needs.
    """
    needed = cost.model_bytes + sum(_stage_bytes(offer, cost) for offer in offers)
    if not offers:
        needed += cost.stage_bytes
    available = sum(max(offer.usable_bytes, 0) for offer in offers)
    largest = max((offer.usable_bytes - _stage_bytes(offer, cost) for offer in offers), default=0)
    hint = ""
    if offers and (part := _too_large_part(offers, cost)):
        hint = part
    elif largest > 0 and needed > available:
        more = format_count(-(-(needed - available) // largest), "more node")
        hint = f"add {more} with as much memory as the largest"
    return InsufficientMemoryError(
        needed,
        available,
        f"the model needs {format_bytes(needed)}, but only {format_bytes(available)} are "
        f"usable on {format_count(len(offers), 'unit')}",
        hint=hint,
    )


def _too_large_part(offers: Sequence[UnitOffer], cost: ModelCost) -> str:
    """Return the hint for a part of the model that fits on no unit; empty if each fits on some."""
    fixed = cost.stage_bytes
    ends = {"the embedding": cost.lone_embedding_bytes, "the head": cost.lone_head_bytes}
    needs = {"a layer": fixed + cost.least_layer_bytes, **ends}
    too_large = {
        name: num_bytes
        for name, num_bytes in needs.items()
        if all(offer.usable_bytes + offer.spared_bytes < num_bytes for offer in offers)
    }
    if not too_large:
        return ""
    name = max(too_large, key=too_large.__getitem__)
    return (
        f"use a node with at least {format_bytes(too_large[name])} for {name}; every stage needs "
        f"{format_bytes(fixed)} for its process, staging and scratch memory"
    )
