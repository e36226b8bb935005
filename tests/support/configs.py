"""Configurations made by hand, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from potluck.types.model import ModelConfig, RopeConfig

PLAIN = ModelConfig(
    family="llama",
    num_layers=2,
    hidden_size=32,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab_size=50,
    max_context_tokens=128,
    rms_norm_epsilon=1e-5,
    rope=RopeConfig(theta=10000.0),
    tied_head=False,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    sliding_windows=(None, None),
)


def make_config(**changes: Any) -> ModelConfig:
    """``PLAIN`` with ``changes``; windows fit ``num_layers`` unless they are given."""
    if "num_layers" in changes:
        changes.setdefault("sliding_windows", (None,) * changes["num_layers"])
    return replace(PLAIN, **changes)
