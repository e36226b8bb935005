"""The costs that placement uses: the parts of a model on the units offered.

``Counting`` is how costs are counted, independently of files and engines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.engines.loading.sizes import on_unit, stronger_quantizations
from potluck.errors import EngineError, UnsupportedModelError
from potluck.placement.divided_work import DividedWork
from potluck.placement.offering import Offered, offers, usable_units
from potluck.placement.stage_reuse import Holding, released
from potluck.placement.work import ModelWork
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendAbilities
from potluck.types.choices import Quantization
from potluck.types.cluster import NodeUnitId
from potluck.types.groups import GroupPart
from potluck.types.node import NodeReport, UnitReport
from potluck.types.placement import ModelCost, UnitOffer, inseparable_layers
from potluck.types.program import Shard
from potluck.types.stage import StagePlan, StageSize

CountStage = Callable[[Shard, StageSize], StagePlan]
"""Counts the memory of a stage on a unit of the size's backend, exactly as its worker will.

Raises the ``EngineError``, ``ModelFileError`` or ``UnsupportedModelError`` of a stage that the
backend cannot run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """One model, counted for units of every backend.

    ``no_cuts`` is that of the model's configuration. ``check_backend`` raises
    ``UnsupportedModelError`` for a backend that cannot compute the model with its quantization, and
    ``EngineError`` for a backend that this node cannot count; so does ``abilities``, which returns
    the abilities of a backend. ``work`` returns what the parts of the model read and compute on
    units of a size's backend, and raises ``KeyError`` if a tensor is missing. ``divided`` returns
    what the members of a group with given shares compute; None if no group can hold the model.
    """

    num_layers: int
    no_cuts: frozenset[int]
    stage: CountStage
    work: Callable[[StageSize], ModelWork]
    check_backend: Callable[[str, Quantization], None]
    abilities: Callable[[str], BackendAbilities]
    divided: Callable[[StageSize, tuple[int, ...]], DividedWork] | None = None


def shapes_of(counting: Counting, size: StageSize, backends: Collection[str]) -> tuple[str, ...]:
    """Return the shapes that a plan may need: in every quantization and arithmetic.

    There are none for backends that this node cannot count or that cannot compute the model, and
    none for a model that lacks a tensor, which ``CountStage`` refuses.

    Nodes store their measurements of the model under these shapes.
    """
    shapes: set[str] = set()
    for backend in backends:
        for each in (size, *stronger_quantizations(size)):
            try:
                counting.check_backend(backend, each.quantization)
            except (EngineError, UnsupportedModelError):
                continue
            try:
                work = counting.work(replace(each, backend=backend))
            except (EngineError, UnsupportedModelError, KeyError):
                continue
            has_several = counting.abilities(backend).has_arithmetics
            arithmetics = Arithmetic if has_several else (Arithmetic.EXACT,)
            shapes.update(work.shape(arithmetic) for arithmetic in arithmetics)
    return tuple(sorted(shapes))


def model_cost(counting: Counting, size: StageSize) -> ModelCost:
    """Return the memory cost of each part of a model on units of one sort.

    If ``size`` is that of a unit with memory of its own, the cost is in that memory, and
    ``most_host_bytes`` gives the cost in host memory. Raises the same errors as ``CountStage``.
    """
    last = counting.num_layers

    def count(start: int, end: int, *, embedding: bool = False, head: bool = False) -> _Cost:
        return _count(counting, size, start, end, embedding=embedding, head=head)

    no_cuts = counting.no_cuts
    # Layers that need the embedding already include it, so it costs nothing extra.
    needs_embedding = 0 in no_cuts
    middle = count(0, last, embedding=needs_embedding)
    first = count(0, last, embedding=True)
    final = count(0, last, embedding=needs_embedding, head=True)
    whole = count(0, last, embedding=True, head=True)
    layer_bytes: list[int] = []
    for start, end in inseparable_layers(last, no_cuts):
        held = count(start, end, embedding=needs_embedding and start == 0).held
        layer_bytes += _spread(held, end - start)
    return ModelCost(
        layer_bytes=tuple(layer_bytes),
        embedding_bytes=first.more_than(middle),
        head_bytes=final.more_than(middle),
        shared_bytes=first.held + final.held - middle.held - whole.held,
        scratch_bytes=middle.scratch,
        process_bytes=middle.process,
        lone_embedding_bytes=(first if needs_embedding else count(0, 0, embedding=True)).total,
        lone_head_bytes=count(last, last, head=True).total,
        no_cuts=no_cuts,
    )


def member_cost(counting: Counting, size: StageSize, part: GroupPart) -> ModelCost:
    """Return the cost of each part of a model on a group member that holds this part of it.

    The search considers groups of many sizes, so layers that read and compute alike are counted
    once, and the embedding and the head are each counted next to one layer. Raises the same errors
    as ``CountStage``.
    """
    last = counting.num_layers
    no_cuts = counting.no_cuts
    groups = inseparable_layers(last, no_cuts)
    work = counting.work(size)
    needs_embedding = 0 in no_cuts

    def count(start: int, end: int, *, embedding: bool = False, head: bool = False) -> _Cost:
        has_embedding = embedding or (needs_embedding and start == 0)
        return _count(counting, size, start, end, embedding=has_embedding, head=head, part=part)

    alike: dict[object, _Cost] = {}
    layer_bytes: list[int] = []
    for start, end in groups:
        is_first = needs_embedding and start == 0
        kind = is_first or (work.config.layers[start:end], work.layers[start:end])
        if kind not in alike:
            alike[kind] = count(start, end)
        layer_bytes += _spread(alike[kind].held, end - start)
    first, final = count(*groups[0], embedding=True), count(*groups[-1], head=True)
    before, after = count(*groups[0]), count(*groups[-1])
    shared_bytes = min(first.held - before.held, final.held - after.held)
    return ModelCost(
        layer_bytes=tuple(layer_bytes),
        embedding_bytes=first.more_than(before),
        head_bytes=final.more_than(after),
        shared_bytes=shared_bytes if work.config.tied_head else 0,
        scratch_bytes=max(each.scratch for each in alike.values()),
        process_bytes=max(each.process for each in alike.values()),
        lone_embedding_bytes=(first if needs_embedding else count(0, 0, embedding=True)).total,
        lone_head_bytes=count(last, last, head=True).total,
        no_cuts=no_cuts,
    )


def _spread(num_bytes: int, num_layers: int) -> list[int]:
    """Return the sizes of layers that have ``num_bytes`` together."""
    each, more = divmod(num_bytes, num_layers)
    return [each + (index < more) for index in range(num_layers)]


def _count(
    counting: Counting,
    size: StageSize,
    start: int,
    end: int,
    *,
    embedding: bool,
    head: bool,
    part: GroupPart | None = None,
) -> _Cost:
    shard = Shard(
        start_layer=start,
        end_layer=end,
        num_layers=counting.num_layers,
        has_embedding=embedding,
        has_head=head,
        part=part,
    )
    memory = counting.stage(shard, size).memory
    host_bytes = 0 if size.is_on_device else memory.staging_bytes
    return _Cost(
        held=memory.weights_bytes + memory.cache_bytes + memory.state_bytes,
        scratch=memory.scratch_bytes + memory.rope_bytes + host_bytes,
        process=0 if size.is_on_device else memory.process_bytes,
        total=memory.device_bytes if size.is_on_device else memory.total_bytes,
    )


def most_host_bytes(counting: Counting, size: StageSize) -> int:
    """Return the most host memory that any stage takes on a unit with memory of its own.

    This is the memory of its process, which is largest for a middle or the last stage, plus its
    loading buffers, which are largest when all tensors are loaded. Raises the same errors as
    ``CountStage``.
    """
    last = counting.num_layers
    whole = counting.stage(Shard.whole(last), size).memory
    process_bytes = 0
    for has_head in (False, True):
        shard = Shard(
            start_layer=0,
            end_layer=last,
            num_layers=last,
            has_embedding=0 in counting.no_cuts,
            has_head=has_head,
        )
        process_bytes = max(process_bytes, counting.stage(shard, size).memory.process_bytes)
    return whole.staging_bytes + process_bytes


def mixed_cost(costs: Sequence[ModelCost]) -> ModelCost:
    """Return a single cost that is valid on units of several sorts, given the cost on each sort.

    For each part it is the maximum over all sorts. The saving when the embedding and the head are
    on the same stage is the minimum over all sorts. The fixed cost of a stage (its process and
    scratch) often differs a lot between backends, so units that take less are credited with the
    difference (``CountedOffers.credited``). A stage is counted exactly only once it is assigned to
    a unit (``planned.planned_stages``).
    """
    most = ModelCost.largest(costs)
    # The credit is also subtracted from the cost of a lone end, so that cost has to include it.
    credited = [(cost, most.stage_bytes - cost.stage_bytes) for cost in costs]
    return replace(
        most,
        lone_embedding_bytes=max(cost.lone_embedding_bytes + less for cost, less in credited),
        lone_head_bytes=max(cost.lone_head_bytes + less for cost, less in credited),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """The memory of a stage in parts.

    ``held``: weights, cache and states; ``scratch``: buffers for computing and loading.
    """

    held: int
    scratch: int
    process: int
    total: int

    def more_than(self, other: _Cost) -> int:
        """Return what an end of the model adds to the stage ``other``.

        This includes what the end enlarges: loading buffers, logits, and the process of a last
        stage with its results. Shared buffers are therefore counted twice rather than missed.
        """
        return (
            self.held
            - other.held
            + max(0, self.scratch - other.scratch)
            + max(0, self.process - other.process)
        )


Sort = tuple[str, bool]
"""The properties of a unit that affect counting: its backend, and whether it uses host memory."""


def sort_of(unit: UnitReport) -> Sort:
    """Return the sort of a unit."""
    return unit.backend, unit.is_shared


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedOffers:
    """The offers of units, and the cost of every part of a model on them.

    ``costs`` and ``sizes`` are keyed by sort of unit; ``mixed`` is one cost for all sorts.
    """

    offered: Offered
    costs: Mapping[Sort, ModelCost]
    sizes: Mapping[Sort, StageSize]
    mixed: ModelCost

    def credited(self, units: Mapping[NodeUnitId, UnitReport]) -> tuple[UnitOffer, ...]:
        """Return fair offers for the mixed cost, with the credit of each unit."""
        most = self.mixed.stage_bytes
        return tuple(
            replace(offer, spared_bytes=most - self.costs[sort_of(units[offer.unit])].stage_bytes)
            for offer in self.offered.offers
        )


def count_offers(
    counting: Counting,
    reports: Sequence[NodeReport],
    able: Sequence[NodeReport],
    size: StageSize,
    *,
    with_reserve: bool,
    released_stages: Sequence[Holding] = (),
) -> CountedOffers:
    """Return what the units of ``able`` offer once ``released_stages`` are released.

    ``reports`` are those of all nodes, as for ``offers``. Raises the same errors as ``CountStage``.
    """

    def without(nodes: Sequence[NodeReport]) -> list[NodeReport]:
        return [
            released(
                report, [each.stage for each in released_stages if each.node_id == report.node_id]
            )
            for report in nodes
        ]

    sizes: dict[Sort, StageSize] = {}
    for _, unit in usable_units(able, with_reserve=with_reserve):
        own = on_unit(size, unit, counting.abilities(unit.backend))
        if sizes.setdefault(sort_of(unit), own).num_threads < own.num_threads:
            sizes[sort_of(unit)] = own
    offered = offers(
        without(reports),
        without(able),
        with_reserve=with_reserve,
        host_bytes={
            each.backend: most_host_bytes(counting, each)
            for each in sizes.values()
            if each.is_on_device
        },
    )
    costs = {sort: model_cost(counting, each) for sort, each in sizes.items()}
    # If nothing is offered, the error should still state the memory requirement of the model.
    mixed = mixed_cost(list(costs.values()) or [model_cost(counting, size)])
    return CountedOffers(offered=offered, costs=costs, sizes=sizes, mixed=mixed)
