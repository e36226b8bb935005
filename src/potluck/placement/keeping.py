"""Plans that keep the stages that workers hold, and add what nobody holds. Pure.

When a machine is lost, the others have most of the model in memory. The plan that serves again
soonest leaves every layer where it is, and places only the layers that are missing, as further
stages on units that have room. A unit may then have several stages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from potluck.errors import InsufficientMemoryError
from potluck.placement.cuts import Items, items_of, shard_of
from potluck.placement.proportional import place
from potluck.types.cluster import NodeId, UnitId
from potluck.types.node import HeldStage, NodeReport
from potluck.types.placement import ModelCost, PlacedStage, Plan, UnitOffer
from potluck.types.program import Shard
from potluck.types.stage import StageSize

UnitKey = tuple[NodeId, UnitId]
"""A unit of the cluster."""

_NEVER_BYTES = 2**62
"""What an end without a layer is said to take, so that none is placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A stage that a node holds, as far as a plan may keep it."""

    node_id: NodeId
    stage: HeldStage

    @property
    def unit(self) -> tuple[NodeId, UnitId]:
        """Where it is."""
        return self.node_id, self.stage.unit_id

    def is_stage(self, unit: tuple[NodeId, UnitId], shard: Shard, size: StageSize) -> bool:
        """Return whether it is a plan's stage with this shard, of this size, on this unit."""
        held = self.stage
        return (
            self.unit == unit
            and (held.start_layer, held.end_layer) == (shard.start_layer, shard.end_layer)
            and (held.has_embedding, held.has_head) == (shard.has_embedding, shard.has_head)
            and is_of_size(held, size)
        )


def _items(stage: HeldStage, num_layers: int) -> Items:
    return items_of(
        Shard(
            start_layer=stage.start_layer,
            end_layer=stage.end_layer,
            num_layers=num_layers,
            has_embedding=stage.has_embedding,
            has_head=stage.has_head,
        )
    )


def is_of_size(stage: HeldStage, size: StageSize) -> bool:
    """Whether a held stage was loaded as a plan of this size would have it.

    One whose weights are mapped will do where they need not be.
    """
    return (
        stage.context_tokens == size.context_tokens
        and stage.num_blocks == size.num_blocks
        and stage.num_states == size.num_states
        and stage.quantization is size.quantization
        and (stage.arithmetic is size.arithmetic or not size.has_arithmetics)
        and stage.is_mapped >= size.is_mapped
    )


def kept(
    holdings: Iterable[Holding],
    num_layers: int,
    in_use: Collection[tuple[NodeId, UnitId, int, int]] = (),
) -> tuple[Holding, ...]:
    """Return the holdings that overlap nowhere and have most of the model, in its order.

    Weighted interval scheduling (Kleinberg and Tardos, Algorithm Design, section 6.1). Of several
    holders of the same layers it is the one whose node, unit and layers are ``in_use``, rather than
    a spare.
    """
    by_end = sorted(
        ((_items(each.stage, num_layers), each) for each in holdings),
        key=lambda pair: (
            pair[0].end,
            pair[0].start,
            (*pair[1].unit, pair[1].stage.start_layer, pair[1].stage.end_layer) in in_use,
            pair[1].stage.epoch,
            pair[1].unit,
        ),
    )
    ends = [part.end for part, _ in by_end]
    best: list[tuple[tuple[int, int], tuple[Holding, ...]]] = [((0, 0), ())]
    for index, (part, holding) in enumerate(by_end):
        before = best[bisect_right(ends, part.start, hi=index)]
        # Among equals, fewer stages are fewer hops.
        score = (before[0][0] + part.end - part.start, before[0][1] - 1)
        without = best[index]
        has_more = score > without[0] or (score == without[0] and bool(without[1]))
        best.append((score, (*before[1], holding)) if has_more else without)
    return best[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Items of a model that nobody holds, and what there is to fill them with.

    The items ``[start, end)`` are as in ``placement.path``. The stages ``before`` and ``after`` are
    on these units; None at the ends of the model. ``left`` is what units still offer, ``busy`` are
    those that have a stage already.
    """

    start: int
    end: int
    before: UnitKey | None
    after: UnitKey | None
    left: Mapping[UnitKey, UnitOffer]
    busy: Collection[UnitKey]
    cost: ModelCost


Fill = Callable[[Gap], list[PlacedStage] | None]
"""Places the layers of a gap; None if they do not fit."""


def keep_and_fill(
    holdings: Sequence[Holding],
    offers: Sequence[UnitOffer],
    cost: ModelCost,
    fill: Fill | None = None,
) -> Plan | None:
    """Return a plan that keeps ``holdings`` and has ``fill`` place what lies between them.

    ``holdings`` are as ``kept`` gives them. None if there are none, or if the rest does not fit in
    what the units offer besides. Without ``fill``, gaps are filled in proportion to memory.
    """
    if not holdings:
        return None
    num_layers = len(cost.layer_bytes)
    stages: list[PlacedStage] = []
    busy = {each.unit for each in holdings}
    left = {(offer.node_id, offer.unit_id): offer for offer in offers}
    position = 0
    for holding in (*holdings, None):
        part = None if holding is None else _items(holding.stage, num_layers)
        gap = Items(start=position, end=num_layers + 2 if part is None else part.start)
        if gap.start < gap.end:
            filling = (fill or fill_by_memory)(
                Gap(
                    start=gap.start,
                    end=gap.end,
                    before=(stages[-1].node_id, stages[-1].unit_id) if stages else None,
                    after=None if holding is None else holding.unit,
                    left=left,
                    busy={(each.node_id, each.unit_id) for each in stages} | busy,
                    cost=cost,
                )
            )
            if filling is None:
                return None
            stages += filling
            for stage in filling:
                offer = left[stage.node_id, stage.unit_id]
                left[stage.node_id, stage.unit_id] = replace(
                    offer, usable_bytes=offer.usable_bytes - stage.num_bytes
                )
        if holding is not None and part is not None:
            stages.append(
                PlacedStage(
                    node_id=holding.node_id,
                    unit_id=holding.stage.unit_id,
                    shard=shard_of(part.start, part.end, num_layers),
                    num_bytes=holding.stage.num_bytes + holding.stage.device_bytes,
                    is_mapped=holding.stage.is_mapped,
                )
            )
            position = part.end
    return Plan(stages=tuple(stages), rejections=())


def fill_by_memory(gap: Gap) -> list[PlacedStage] | None:
    """Place the layers of a gap: on one unit if one has the room, and otherwise on several.

    One that has no stage yet comes before those that are busy.
    """
    cost, left, busy = gap.cost, gap.left, gap.busy
    shard = shard_of(gap.start, gap.end, len(cost.layer_bytes))
    if shard.start_layer == shard.end_layer:
        return None  # an end alone: a plan of its own has more to choose from
    part_cost = replace(
        cost,
        layer_bytes=cost.layer_bytes[shard.start_layer : shard.end_layer],
        no_cuts=frozenset(
            layer - shard.start_layer
            for layer in cost.no_cuts
            if shard.start_layer < layer < shard.end_layer
        ),
        embedding_bytes=cost.embedding_bytes if shard.has_embedding else 0,
        head_bytes=cost.head_bytes if shard.has_head else 0,
        shared_bytes=cost.shared_bytes if shard.has_embedding and shard.has_head else 0,
        lone_embedding_bytes=_NEVER_BYTES,
        lone_head_bytes=_NEVER_BYTES,
    )
    by_room = sorted(left.values(), key=lambda offer: (-offer.usable_bytes, offer.node_id))
    idle_first = sorted(by_room, key=lambda offer: (offer.node_id, offer.unit_id) in busy)
    # Each further stage is a process and a hop, so that not every unit gets a share of the gap.
    choices = [[offer] for offer in idle_first]
    choices += [by_room[:count] for count in range(2, len(by_room) + 1)]
    for choice in choices:
        try:
            plan = place(choice, part_cost)
        except InsufficientMemoryError:
            continue
        return [_in_model(stage, shard) for stage in plan.stages]
    return None


def _in_model(stage: PlacedStage, gap: Shard) -> PlacedStage:
    """A stage of a gap's plan as one of the whole model's."""
    part = stage.shard
    shard = Shard(
        start_layer=gap.start_layer + part.start_layer,
        end_layer=gap.start_layer + part.end_layer,
        num_layers=gap.num_layers,
        has_embedding=part.has_embedding and gap.has_embedding,
        has_head=part.has_head and gap.has_head,
    )
    return replace(stage, shard=shard)


def released(report: NodeReport, stages: Iterable[HeldStage]) -> NodeReport:
    """Return a report as it would be without ``stages``, which the node holds now."""
    host_bytes = sum(stage.num_bytes for stage in stages)
    units = tuple(
        msgspec.structs.replace(
            unit,
            usable_bytes=unit.usable_bytes
            + (
                host_bytes
                if unit.is_shared
                else sum(each.device_bytes for each in stages if each.unit_id == unit.unit_id)
            ),
        )
        for unit in report.units
    )
    return msgspec.structs.replace(
        report,
        usable_bytes=report.usable_bytes + host_bytes,
        # What a stage has not taken is promised to it, and what it has taken is not free.
        untaken_bytes=report.untaken_bytes - host_bytes,
        units=units,
    )
