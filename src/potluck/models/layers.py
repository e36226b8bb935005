"""Create the layers of a model: all equal, or changed individually by the family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    HeadNorm,
    LayerConfig,
    MlpConfig,
    ModelConfig,
    NormPlaces,
    Recurrence,
    RopeConfig,
)


def plain_layers(
    num_layers: int,
    attention: AttentionConfig,
    mlp: MlpConfig,
    sliding_windows: Sequence[int | None] | None = None,
    experts: Sequence[ExpertsConfig | None] | None = None,
) -> tuple[LayerConfig, ...]:
    """Return layers with equal attention except for the window, and an MLP where there are no
    experts.
    """
    windows = sliding_windows or (None,) * num_layers
    each_experts = experts or (None,) * num_layers
    return tuple(
        LayerConfig(
            attention=dataclasses.replace(attention, window=window),
            mlp=mlp if its_experts is None else None,
            experts=its_experts,
        )
        for window, its_experts in zip(windows, each_experts, strict=True)
    )


def all_but_every_nth(num_layers: int, pattern: int) -> tuple[bool, ...]:
    """Return true for all layers except every ``pattern``-th; 0 selects all of them."""
    return tuple(pattern == 0 or (layer + 1) % pattern != 0 for layer in range(num_layers))


def with_layers(
    config: ModelConfig, change: Callable[[int, LayerConfig], LayerConfig]
) -> ModelConfig:
    """Return ``config`` with each layer replaced by ``change(index, layer)``."""
    layers = tuple(change(index, layer) for index, layer in enumerate(config.layers))
    return dataclasses.replace(config, layers=layers)


def with_attention(
    config: ModelConfig, change: Callable[[int, AttentionConfig], AttentionConfig]
) -> ModelConfig:
    """Like ``with_layers``, for the attention of each layer that has key-value heads."""

    def changed(index: int, layer: LayerConfig) -> LayerConfig:
        if not isinstance(layer.attention, AttentionConfig):
            return layer
        return dataclasses.replace(layer, attention=change(index, layer.attention))

    return with_layers(config, changed)


def with_windows(
    config: ModelConfig,
    is_sliding: Sequence[bool],
    window: int | None,
    ropes: Mapping[bool, int | None],
    norms: NormPlaces,
) -> ModelConfig:
    """Return ``config`` with ``norms``, and a window in some layers.

    ``ropes`` maps whether a layer slides to the index of its rope.
    """

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        slides = is_sliding[index]
        attention = dataclasses.replace(
            layer.grouped_attention, window=window if slides else None, rope=ropes[slides]
        )
        return dataclasses.replace(layer, attention=attention, norms=norms)

    return with_layers(config, change)


def with_recurrence(
    config: ModelConfig, recurrence: Recurrence, has_attention: Sequence[bool]
) -> ModelConfig:
    """Return ``config`` with ``recurrence`` in place of attention in the layers without it."""

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        if has_attention[index]:
            return layer
        return dataclasses.replace(layer, attention=None, recurrence=recurrence)

    return with_layers(config, change)


def plain_config(
    *,
    family: str,
    num_layers: int,
    hidden_size: int,
    intermediate_size: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    vocab_size: int,
    max_context_tokens: int,
    norm_epsilon: float,
    theta: float,
    tied_head: bool = False,
    has_head_norms: bool = False,
    experts: ExpertsConfig | None = None,
) -> ModelConfig:
    """Return a model like Llama or Qwen 3, without biases, with equal layers."""
    attention = AttentionConfig(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        head_norm=HeadNorm.HEAD if has_head_norms else HeadNorm.NONE,
    )
    return ModelConfig(
        family=family,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_context_tokens=max_context_tokens,
        norm_epsilon=norm_epsilon,
        layers=plain_layers(
            num_layers,
            attention,
            MlpConfig(width=intermediate_size),
            experts=(experts,) * num_layers,
        ),
        ropes=(RopeConfig(theta=theta, rotary_dim=head_dim),),
        tied_head=tied_head,
    )
