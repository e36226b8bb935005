"""The size of recurrent states of sequences, and the number of slots for them."""

from __future__ import annotations

from potluck.errors import ParameterError
from potluck.models.program import state_specs
from potluck.types.model import ModelConfig
from potluck.types.program import Shard
from potluck.types.ranges import require_number
from potluck.types.states import default_num_states


def slot_bytes(config: ModelConfig) -> int:
    """Return the size of a state slot over all layers; 0 for a model without state.

    Each stage stores the part of its own layers only.
    """
    if all(layer.recurrence is None for layer in config.layers):
        return 0
    return sum(state.num_bytes for state in state_specs(config, Shard.whole(config.num_layers)))


def num_states_of(
    config: ModelConfig,
    requested: int | None,
    *,
    default: int | None = None,
    least: int = 1,
    why: str = "",
) -> int:
    """Return the number of state slots that every stage of a model has; 0 for a model without
    state.

    ``requested`` is the number that the user gave. If it is None, use ``default`` (or
    ``default_num_states``), and at least ``least``. Raise ``ParameterError`` for a number out of
    range or below ``least`` (``why`` says what these are needed for), and for any requested number
    if the model has no state.
    """
    for number in (requested, default):
        if number is not None:
            require_number("states", number)
    num_bytes = slot_bytes(config)
    if requested is None:
        if num_bytes == 0:
            return 0
        return max(least, default_num_states(num_bytes) if default is None else default)
    if num_bytes == 0:
        raise ParameterError(
            "states",
            f"{config.family} models have no state slots, only keys and values",
            hint="omit the number of state slots",
        )
    if requested < least:
        raise ParameterError(
            "states",
            f"{requested} state slots are too few: {least} are needed for {why}",
            hint=f"use {least} or more, or omit the number",
        )
    return requested
