"""What sequences of a model keep besides keys and values."""

from __future__ import annotations

from potluck.models.program import state_specs
from potluck.types.model import ModelConfig
from potluck.types.program import Shard


def slot_bytes(config: ModelConfig) -> int:
    """Return what one state slot takes, of all layers together; 0 for a model without state.

    Stages have the parts of their own layers only.
    """
    if all(layer.recurrence is None for layer in config.layers):
        return 0
    return sum(state.num_bytes for state in state_specs(config, Shard.whole(config.num_layers)))
