"""Conversion between the stages of a model and ranges of its items.

Item 0 is the embedding, item ``n + 1`` is layer ``n``, and the last item is the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from potluck.types.placement import ModelCost
from potluck.types.program import Shard


class Items(NamedTuple):
    """The items ``[start, end)``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The items ``[start, end)`` on a unit, given by its index."""

    unit: int
    start: int
    end: int


def items_of(shard: Shard) -> Items:
    """Return the items of a shard."""
    return Items(
        start=0 if shard.has_embedding else shard.start_layer + 1,
        end=shard.num_layers + 2 if shard.has_head else shard.end_layer + 1,
    )


def shard_of(start: int, end: int, num_layers: int) -> Shard:
    """Return the shard of the items ``[start, end)``."""
    return Shard(
        start_layer=max(0, start - 1),
        end_layer=min(num_layers, max(end - 1, 0)),
        num_layers=num_layers,
        has_embedding=start == 0,
        has_head=end == num_layers + 2,
    )


def bytes_of(cost: ModelCost, start: int, end: int) -> int:
    """Return the memory cost of a stage with the items ``[start, end)``
    (``PathProblem.bytes_of``).
    """
    last = len(cost.layer_bytes) + 2
    if (start, end) == (0, 1):
        return cost.lone_embedding_bytes
    if (start, end) == (last - 1, last):
        return cost.lone_head_bytes
    num_bytes = sum(cost.item_bytes[start:end]) + cost.stage_bytes
    return num_bytes - (cost.shared_bytes if (start, end) == (0, last) else 0)


def cut_of(unit: int, shard: Shard) -> Cut:
    """Return the items of a shard on the unit with this index."""
    start, end = items_of(shard)
    return Cut(unit=unit, start=start, end=end)
