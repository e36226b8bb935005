"""The model of the small program whose tokens per second are measured on every backend.

Its layers have the shape of a model of a billion parameters (TinyLlama 1.1B: hidden size 2048, 5632
between, 32 heads of 64 and 4 of keys and values), with weights in Q8_0. ``engines.rate_program``
runs it, and ``placement.speed`` derives from its rates how fast other models are.
"""

from __future__ import annotations

from potluck.models.layers import plain_config
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorFormat

TRIAL_LAYERS = 2
TRIAL_FORMAT = TensorFormat.Q8_0
TRIAL_PREFILL_TOKENS = 32
"""A step that every backend can take at once."""


def trial_config(num_layers: int, max_context_tokens: int) -> ModelConfig:
    """Return the configuration; tokens are all 0, and nothing reads them."""
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
