"""Plans that keep the stages that workers hold, and add the missing layers. Pure.

When a machine is lost, the other nodes still have most of the model in memory. The plan that
resumes serving soonest leaves every layer where it is, and places only the missing layers, as
additional stages on units that have room. A unit may then have several stages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from potluck.errors import InsufficientMemoryError
from potluck.placement.cuts import items_of, shard_of
from potluck.placement.proportional import place
from potluck.types.cluster import Epoch, NodeId, NodeUnitId, UnitId
from potluck.types.held_stage import HeldStage
from potluck.types.memory import MemoryPlan
from potluck.types.node import NodeReport
from potluck.types.placement import ModelCost, PlacedStage, Plan, UnitOffer
from potluck.types.program import Shard
from potluck.types.stage import StageSize

_NO_EPOCH = Epoch(number=0, coordinator=NodeId(""))

_NEVER_BYTES = 2**62
"""The cost of an end without layers, so high that none is placed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A stage that a node holds, with the properties that decide whether a plan may keep it."""

    node_id: NodeId
    stage: HeldStage

    @property
    def unit(self) -> NodeUnitId:
        """Return the unit that holds it."""
        return self.node_id, self.stage.unit_id

    def is_stage(self, unit: NodeUnitId, shard: Shard, size: StageSize) -> bool:
        """Return whether it is the stage of a plan with this shard and size on this unit."""
        return self.unit == unit and self.stage.shard == shard and is_of_size(self.stage, size)


def is_of_size(stage: HeldStage, size: StageSize) -> bool:
    """Return whether a held stage was loaded as a plan of this size requires.

    A stage with mapped weights is accepted even if mapping is not required.
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
    """Return the non-overlapping holdings that cover most of the model, in its order.

    Weighted interval scheduling (Kleinberg and Tardos, Algorithm Design, section 6.1). Stages of a
    model with another number of layers are left out. If there are several holders of the same
    layers, the one whose node, unit and layers are ``in_use`` is preferred to a spare. The members
    of a group, which follow one another, are kept together or not at all.
    """

    def rank(holding: Holding) -> tuple[bool, Epoch, NodeUnitId]:
        stage = holding.stage
        is_used = (*holding.unit, stage.shard.start_layer, stage.shard.end_layer) in in_use
        return is_used, stage.epoch, holding.unit

    by_end = sorted(
        (
            (items_of(members[0].stage.shard), members)
            for members in _whole_groups(
                (each for each in holdings if each.stage.shard.num_layers == num_layers), rank
            )
        ),
        key=lambda pair: (pair[0].end, pair[0].start, min(map(rank, pair[1]))),
    )
    ends = [part.end for part, _ in by_end]
    best: list[tuple[tuple[int, int], tuple[Holding, ...]]] = [((0, 0), ())]
    for index, (part, members) in enumerate(by_end):
        before = best[bisect_right(ends, part.start, hi=index)]
        # At equal coverage, prefer fewer stages, which means fewer hops.
        score = (before[0][0] + part.end - part.start, before[0][1] - 1)
        without = best[index]
        has_more = score > without[0] or (score == without[0] and bool(without[1]))
        best.append((score, (*before[1], *members)) if has_more else without)
    return best[-1][1]


def _whole_groups(
    holdings: Iterable[Holding], rank: Callable[[Holding], tuple[bool, Epoch, NodeUnitId]]
) -> Iterator[tuple[Holding, ...]]:
    """Yield every completely held stage: by one unit, or by all members of a group.

    If there are several holders of one part, it is the one of the highest rank whose unit has no
    other part.
    """
    groups: defaultdict[tuple[HeldStage, tuple[int, ...]], defaultdict[int, list[Holding]]]
    groups = defaultdict(lambda: defaultdict(list))
    for each in sorted(holdings, key=rank, reverse=True):
        shard = each.stage.shard
        if shard.part is None:
            yield (each,)
        else:
            common = msgspec.structs.replace(
                each.stage,
                epoch=_NO_EPOCH,
                unit_id=UnitId(""),
                shard=replace(shard, part=None),
                num_bytes=0,
                device_bytes=0,
                is_mapped=False,
            )
            groups[common, shard.part.shares][shard.part.member].append(each)
    for (_, shares), held in groups.items():
        members: list[Holding] = []
        for member in range(len(shares)):
            units = {each.unit for each in members}
            members += [each for each in held[member] if each.unit not in units][:1]
        if len(members) == len(shares):
            yield tuple(members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Items of a model that nobody holds, and the units that can take them.

    The items ``[start, end)`` are as in ``placement.path``. The stages ``before`` and ``after`` are
    on these units; None at the ends of the model. ``left`` is what units still offer, and ``busy``
    are those that already have a stage.
    """

    start: int
    end: int
    before: NodeUnitId | None
    after: NodeUnitId | None
    left: Mapping[NodeUnitId, UnitOffer]
    busy: Collection[NodeUnitId]
    cost: ModelCost


Fill = Callable[[Gap], list[PlacedStage] | None]
"""Places the layers of a gap; returns None if they do not fit."""


def keep_and_fill(
    holdings: Sequence[Holding],
    offers: Sequence[UnitOffer],
    cost: ModelCost,
    fill: Fill | None = None,
) -> Plan | None:
    """Return a plan that keeps ``holdings`` and places the layers between them with ``fill``.

    ``holdings`` are as returned by ``kept``. Return None if there are none, or if the missing
    layers do not fit in the remaining memory. Without ``fill``, gaps are filled in proportion to
    memory.
    """
    if not holdings:
        return None
    num_layers = len(cost.layer_bytes)
    stages: list[PlacedStage] = []
    busy = {each.unit for each in holdings}
    leader: NodeUnitId | None = None
    left = {offer.unit: offer for offer in offers}
    position = 0
    for holding in (*holdings, None):
        part = None if holding is None else items_of(holding.stage.shard)
        gap_end = num_layers + 2 if part is None else part.start
        if position < gap_end:
            filling = (fill or fill_by_memory)(
                Gap(
                    start=position,
                    end=gap_end,
                    before=leader,
                    after=None if holding is None else holding.unit,
                    left=left,
                    busy={each.unit for each in stages} | busy,
                    cost=cost,
                )
            )
            if filling is None:
                return None
            stages += filling
            leader = filling[-1].unit
            for stage in filling:
                offer = left[stage.unit]
                left[stage.unit] = replace(offer, usable_bytes=offer.usable_bytes - stage.num_bytes)
        if holding is not None and part is not None:
            stages.append(
                PlacedStage(
                    node_id=holding.node_id,
                    unit_id=holding.stage.unit_id,
                    shard=holding.stage.shard,
                    num_bytes=holding.stage.num_bytes + holding.stage.device_bytes,
                    is_mapped=holding.stage.is_mapped,
                )
            )
            position = part.end
            if not stages[-1].shard.is_led:
                leader = holding.unit
    return Plan(stages=tuple(stages), rejections=())


def fill_by_memory(gap: Gap) -> list[PlacedStage] | None:
    """Place the layers of a gap: on one unit if one has the room, and otherwise on several.

    Units without a stage come before those that have one.
    """
    cost, left, busy = gap.cost, gap.left, gap.busy
    shard = shard_of(gap.start, gap.end, len(cost.layer_bytes))
    if shard.start_layer == shard.end_layer:
        return None  # an end without layers: a new plan has more choices
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
    idle_first = sorted(by_room, key=lambda offer: offer.unit in busy)
    # Each additional stage is a process and a hop, so not every unit gets a share of the gap.
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
    """Return a stage of a gap's plan as a stage of the whole model."""
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
    return _with_more(
        report, [(stage.unit_id, stage.num_bytes, stage.device_bytes) for stage in stages]
    )


def reserved(report: NodeReport, stages: Iterable[tuple[UnitId, MemoryPlan]]) -> NodeReport:
    """Return a report as it would be if memory were promised to ``stages``, none taken so far."""
    return _with_more(
        report, [(unit, -memory.host_bytes, -memory.device_bytes) for unit, memory in stages]
    )


def _with_more(report: NodeReport, freed: Sequence[tuple[UnitId, int, int]]) -> NodeReport:
    """Return a report with more usable memory on the host, and on units with their own."""
    host_bytes = sum(num_bytes for _, num_bytes, _ in freed)
    device_bytes = Counter[UnitId]()
    for unit_id, _, num_bytes in freed:
        device_bytes[unit_id] += num_bytes
    units = tuple(
        msgspec.structs.replace(
            unit,
            usable_bytes=unit.usable_bytes
            + (host_bytes if unit.is_shared else device_bytes[unit.unit_id]),
        )
        for unit in report.units
    )
    return msgspec.structs.replace(
        report,
        usable_bytes=report.usable_bytes + host_bytes,
        # Memory that a stage has not yet taken is reserved for it; memory that it has taken is not
        # free.
        untaken_bytes=report.untaken_bytes - host_bytes,
        units=units,
    )
