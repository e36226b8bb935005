"""Cutting a model into equal stages."""

from __future__ import annotations

from potluck.errors import ParameterError
from potluck.types.program import Shard


def split_evenly(num_layers: int, num_stages: int) -> tuple[Shard, ...]:
    """Contiguous shards whose layer counts differ by at most one, longer ones first.

    Raises ``ParameterError`` unless ``1 <= num_stages <= num_layers``.
    """
    if not 1 <= num_stages <= num_layers:
        raise ParameterError(
            "stages",
            f"{num_stages} stages cannot be cut from {num_layers} layers",
            hint=f"give a number from 1 to {num_layers}",
        )
    shortest, num_longer = divmod(num_layers, num_stages)
    shards = []
    start = 0
    for index in range(num_stages):
        end = start + shortest + (index < num_longer)
        shards.append(
            Shard(
                start_layer=start,
                end_layer=end,
                num_layers=num_layers,
                has_embedding=index == 0,
                has_head=index == num_stages - 1,
            )
        )
        start = end
    return tuple(shards)
