"""The size of recurrent states of sequences."""

from __future__ import annotations

from potluck.models.program import state_specs
from potluck.types.model import ModelConfig
from potluck.types.program import Shard


def slot_bytes(config: ModelConfig) -> int:
    """Return the size of a state slot over all layers; 0 for a model without state.

    Each stage stores the part of its own layers only.
    """
    if all(layer.recurrence is None for layer in config.layers):
        return 0
    return sum(state.num_bytes for state in state_specs(config, Shard.whole(config.num_layers)))
