"""What placement counts with: a model's parts, on the units that are offered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from potluck.placement.counting import Counting
from potluck.types.placement import ModelCost
from potluck.types.program import Shard
from potluck.types.stage import StageSize


def model_cost(counting: Counting, size: StageSize) -> ModelCost:
    """What each part of a model takes on units of one sort.

    Where ``size`` is that of a unit with memory of its own, it is of that memory, and
    ``most_host_bytes`` of the machine's. Raises as ``CountStage``.
    """
    last = counting.num_layers

    def count(start: int, end: int, *, embedding: bool = False, head: bool = False) -> _Cost:
        shard = Shard(
            start_layer=start,
            end_layer=end,
            num_layers=last,
            has_embedding=embedding,
            has_head=head,
        )
        memory = counting.stage(shard, size).memory
        host_bytes = 0 if size.is_on_device else memory.staging_bytes
        return _Cost(
            held=memory.weights_bytes + memory.cache_bytes + memory.state_bytes,
            scratch=memory.scratch_bytes + memory.rope_bytes + host_bytes,
            process=0 if size.is_on_device else memory.process_bytes,
            total=memory.device_bytes if size.is_on_device else memory.total_bytes,
        )

    no_cuts = frozenset(layer for layer in range(last + 1) if not counting.can_cut_before(layer))
    # Layers that need the embedding are counted with it, and it adds nothing.
    needs_embedding = 0 in no_cuts
    middle = count(0, last, embedding=needs_embedding)
    first = count(0, last, embedding=True)
    final = count(0, last, embedding=needs_embedding, head=True)
    whole = count(0, last, embedding=True, head=True)
    layer_bytes: list[int] = []
    bounds = [0, *(layer for layer in range(1, last) if layer not in no_cuts), last]
    for start, end in pairwise(bounds):
        held = count(start, end, embedding=needs_embedding and start == 0).held
        each, more = divmod(held, end - start)
        layer_bytes += [each + (index < more) for index in range(end - start)]
    # Embedding and head are counted with what they make larger: the buffers that they are
    # loaded through, the logits. Buffers that are shared are counted twice then, not missed.
    embedding_bytes = first.held - middle.held + max(0, first.scratch - middle.scratch)
    head_bytes = final.held - middle.held + max(0, final.scratch - middle.scratch)
    # The last stage's process may be larger than that between two others: its results are.
    head_bytes += max(0, final.process - middle.process)
    return ModelCost(
        layer_bytes=tuple(layer_bytes),
        embedding_bytes=embedding_bytes,
        head_bytes=head_bytes,
        shared_bytes=first.held + final.held - middle.held - whole.held,
        scratch_bytes=middle.scratch,
        process_bytes=middle.process,
        lone_embedding_bytes=(first if needs_embedding else count(0, 0, embedding=True)).total,
        lone_head_bytes=count(last, last, head=True).total,
        no_cuts=no_cuts,
    )


def most_host_bytes(counting: Counting, size: StageSize) -> int:
    """What any stage takes of the machine's memory on a unit with memory of its own.

    That is its process, largest between two others or at the end, and what it is loaded through,
    largest where all tensors are. Raises as ``CountStage``.
    """
    last = counting.num_layers
    whole = counting.stage(Shard.whole(last), size).memory
    process_bytes = 0
    for has_head in (False, True):
        shard = Shard(
            start_layer=0,
            end_layer=last,
            num_layers=last,
            has_embedding=not counting.can_cut_before(0),
            has_head=has_head,
        )
        process_bytes = max(process_bytes, counting.stage(shard, size).memory.process_bytes)
    return whole.staging_bytes + process_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCost:
    """A cost that holds on units of every sort, and by how much less a stage takes on each."""

    cost: ModelCost
    spared_bytes: tuple[int, ...]


def mixed_cost(costs: Sequence[ModelCost]) -> MixedCost:
    """One cost for units of several sorts, of which ``costs`` has one each.

    It is of each part the most that it takes on any; what an embedding and a head have in common
    is the least that any saves by it. What every stage takes anyway, its process and its scratch,
    often differs much by backend, and is credited to the units that take less. A stage is counted
    exactly only when it has its unit (``planned.planned_model``).
    """
    scratch_bytes = max(cost.scratch_bytes for cost in costs)
    process_bytes = max(cost.process_bytes for cost in costs)
    spared = tuple(
        scratch_bytes + process_bytes - cost.scratch_bytes - cost.process_bytes for cost in costs
    )
    # From an end alone the credit is taken as well, so that it is to be in there.
    credited = list(zip(costs, spared, strict=True))
    most = ModelCost(
        layer_bytes=tuple(max(each) for each in zip(*(c.layer_bytes for c in costs), strict=True)),
        embedding_bytes=max(cost.embedding_bytes for cost in costs),
        head_bytes=max(cost.head_bytes for cost in costs),
        shared_bytes=min(cost.shared_bytes for cost in costs),
        scratch_bytes=scratch_bytes,
        process_bytes=process_bytes,
        lone_embedding_bytes=max(cost.lone_embedding_bytes + less for cost, less in credited),
        lone_head_bytes=max(cost.lone_head_bytes + less for cost, less in credited),
        no_cuts=frozenset().union(*(cost.no_cuts for cost in costs)),
    )
    return MixedCost(cost=most, spared_bytes=spared)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """``held``: weights, cache, states; ``scratch``: what they are computed and loaded through."""

    held: int
    scratch: int
    process: int
    total: int
