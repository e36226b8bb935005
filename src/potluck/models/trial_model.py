"""The model of the small program with which every backend's tokens per second are measured.

Its layers have the shape of a billion-parameter model (TinyLlama 1.1B: hidden size 2048,
intermediate size 5632, 32 heads of 64 and 4 key-value heads), with weights in Q8_0
(``types.trial``). ``engines.profiling.rate_program`` runs it, and ``placement.speed`` estimates the
speed of other models from its rates.
"""

from __future__ import annotations

from potluck.models.layers import plain_config
from potluck.types.model import ModelConfig


def trial_config(num_layers: int, max_context_tokens: int) -> ModelConfig:
    """Return the configuration; all tokens are 0, and nothing reads them."""
    return plain_config(
        family="llama",
        num_layers=num_layers,
        hidden_size=2048,
        intermediate_size=5632,
        num_heads=32,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=1,  # no embedding and no head
        max_context_tokens=max_context_tokens,
        norm_epsilon=1e-5,
        theta=10000.0,
    )
