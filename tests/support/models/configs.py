"""Configurations made by hand, without files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from potluck.models.layers import plain_layers, with_attention, with_layers
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


def with_windows(config: ModelConfig, windows: Sequence[int | None]) -> ModelConfig:
    """``config`` with one window for each layer."""
    return with_attention(config, lambda index, each: replace(each, window=windows[index]))


def with_experts(config: ModelConfig, experts: ExpertsConfig) -> ModelConfig:
    """``config`` with other experts in the layers that have some."""
    return with_layers(
        config,
        lambda _, layer: layer if layer.experts is None else replace(layer, experts=experts),
    )


def windows_of(config: ModelConfig) -> tuple[int | None, ...]:
    """The window of each layer."""
    return tuple(layer.grouped_attention.window for layer in config.layers)


class AlikeLayers:
    """``config``, seen as a model whose layers are alike but for windows and experts."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        attention = config.layers[0].grouped_attention
        mlp = next((layer.mlp for layer in config.layers if layer.mlp is not None), None)
        experts = {layer.experts for layer in config.layers if layer.experts is not None}
        assert len(experts) <= 1
        self.family = config.family
        self.vocab_size = config.vocab_size
        self.tied_head = config.tied_head
        self.norm_epsilon = config.norm_epsilon
        (self.rope,) = config.ropes
        self.num_heads = attention.num_heads
        self.num_kv_heads = attention.num_kv_heads
        self.head_dim = attention.head_dim
        self.qkv_bias = attention.qkv_bias
        self.output_bias = attention.output_bias
        self.qk_norm = attention.head_norm is HeadNorm.HEAD
        self.intermediate_size = None if mlp is None else mlp.width
        self.mlp_bias = mlp is not None and mlp.has_bias
        self.experts = next(iter(experts), None)
        self.has_experts = tuple(layer.experts is not None for layer in config.layers)
        self.sliding_windows = windows_of(config)
        assert len({replace(layer.grouped_attention, window=None) for layer in config.layers}) == 1
