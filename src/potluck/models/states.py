"""What sequences of a model keep besides keys and values."""

from __future__ import annotations

from potluck.models.program import build_program
from potluck.models.rope import empty_rope_tables
from potluck.types.model import ModelConfig
from potluck.types.program import Shard


def slot_bytes(config: ModelConfig) -> int:
    """Return what one state slot takes, of all layers together; 0 for a model without state.

    Stages have the parts of their own layers only.
    """
    if all(layer.recurrence is None for layer in config.layers):
        return 0
    program = build_program(
        config,
        Shard.whole(config.num_layers),
        context_tokens=1,
        ropes=empty_rope_tables(config, context_tokens=1),
    )
    return sum(state.num_bytes for state in program.states)
