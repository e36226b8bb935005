"""Stages of a model as ranges of its row of items, and back.

Item 0 is the embedding, item ``n + 1`` layer ``n``, and the last one the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from potluck.types.program import Shard


class Items(NamedTuple):
    """The items ``[start, end)``."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The items ``[start, end)`` on a unit, by its index."""

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


def cut_of(unit: int, shard: Shard) -> Cut:
    """Return the items of a shard on the unit with this index."""
    start, end = items_of(shard)
    return Cut(unit=unit, start=start, end=end)
