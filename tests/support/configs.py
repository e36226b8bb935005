"""Configurations made by hand, without files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from potluck.models.layers import plain_layers
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    HeadNorm,
    MlpConfig,
    ModelConfig,
    RopeConfig,
)


def make_config(
    *,
    num_layers: int = 2,
    hidden_size: int = 32,
    intermediate_size: int = 64,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    sliding_windows: tuple[int | None, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    experts: ExpertsConfig | None = None,
    expert_layers: tuple[int, ...] | None = None,
    rope: RopeConfig | None = None,
    **others: Any,
) -> ModelConfig:
    """A small model like Llama; ``experts`` are in all layers, or in ``expert_layers``."""
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        head_norm=HeadNorm.HEAD if qk_norm else HeadNorm.NONE,
    )
    with_experts = range(num_layers) if expert_layers is None else expert_layers
    layers = plain_layers(
        num_layers,
        attention,
        MlpConfig(width=intermediate_size, has_bias=mlp_bias),
        sliding_windows,
        [experts if layer in with_experts else None for layer in range(num_layers)],
    )
    plain = ModelConfig(
        family="llama",
        hidden_size=hidden_size,
        vocab_size=50,
        max_context_tokens=128,
        norm_epsilon=1e-5,
        layers=layers,
        ropes=(rope or RopeConfig(theta=10000.0, rotary_dim=head_dim),),
        tied_head=False,
    )
    return replace(plain, **others)
