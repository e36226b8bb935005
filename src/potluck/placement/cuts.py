"""Stages of a model as cuts of its row of items, and back."""

from __future__ import annotations

from potluck.placement.path import Cut
from potluck.types.program import Shard


def shard_of(cut: Cut, num_layers: int) -> Shard:
    """Return the layers of a cut. Item 0 is the embedding, and item ``n + 1`` is layer ``n``."""
    return Shard(
        start_layer=max(0, cut.start - 1),
        end_layer=min(num_layers, max(cut.end - 1, 0)),
        num_layers=num_layers,
        has_embedding=cut.start == 0,
        has_head=cut.end == num_layers + 2,
    )


def cut_of(unit: int, shard: Shard) -> Cut:
    """Return the items of a shard on the unit with this index."""
    return Cut(
        unit=unit,
        start=0 if shard.has_embedding else shard.start_layer + 1,
        end=shard.num_layers + 2 if shard.has_head else shard.end_layer + 1,
    )
