"""Divide a model into equal stages."""

from __future__ import annotations

from collections.abc import Callable

from potluck.errors import ParameterError
from potluck.types.program import Shard


def _anywhere(_layer: int) -> bool:
    return True


def split_evenly(
    num_layers: int, num_stages: int, can_cut_before: Callable[[int], bool] = _anywhere
) -> tuple[Shard, ...]:
    """Return contiguous shards whose numbers of layers differ by at most one, longer ones first.

    If the model cannot be cut there (``ModelConfig.can_cut_before``), it is cut at the nearest
    possible layer. Raise ``ParameterError`` unless ``1 <= num_stages <= num_layers``, or if there
    are too few possible cuts.
    """
    if not 1 <= num_stages <= num_layers:
        raise ParameterError(
            "stages",
            f"{num_layers} layers cannot be split into {num_stages} stages",
            hint=f"use a number from 1 to {num_layers}",
        )
    places = [layer for layer in range(1, num_layers) if can_cut_before(layer)]
    if len(places) < num_stages - 1:
        most = len(places) + 1
        raise ParameterError(
            "stages",
            f"this model cannot be split into {num_stages} stages, because its layers share "
            "keys and values, or an embedding",
            hint="omit --stages" if most == 1 else f"use a number from 1 to {most}",
        )
    shortest, num_longer = divmod(num_layers, num_stages)
    shards = []
    start = wanted = 0
    for index in range(num_stages):
        wanted += shortest + (index < num_longer)
        end = num_layers
        if num_cuts := num_stages - 1 - index:
            # Leave a possible layer for each of the remaining cuts.
            end = min(places[: len(places) - num_cuts + 1], key=lambda each: abs(each - wanted))
            places = [each for each in places if each > end]
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
