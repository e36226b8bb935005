"""Small configurations of models with state and with latent attention, made by hand."""

from __future__ import annotations

from dataclasses import replace

from support.models.configs import make_config

from potluck.models.layers import with_layers
from potluck.types.model import (
    ExpertsConfig,
    GatedDeltaConfig,
    LatentAttentionConfig,
    LayerConfig,
    MambaConfig,
    MlpConfig,
    ModelConfig,
    Recurrence,
    RopeConfig,
    ShortConvConfig,
)
from potluck.types.program import Activation

SHORT_CONV = ShortConvConfig(kernel=3)
GATED_DELTA = GatedDeltaConfig(num_heads=4, num_key_heads=2, key_dim=8, value_dim=16, kernel=4)
MAMBA = MambaConfig(
    num_heads=4,
    head_dim=8,
    num_groups=2,
    state_dim=16,
    kernel=4,
    least_step=0.01,
    largest_step=2.0,
    norm_groups=2,
)
LATENT = LatentAttentionConfig(
    num_heads=4,
    query_rank=24,
    latent_rank=16,
    rope_dim=8,
    nope_dim=12,
    value_dim=20,
    scale=20**-0.5,
)
RECURRENCES: dict[str, Recurrence] = {
    "short_conv": SHORT_CONV,
    "gated_delta": GATED_DELTA,
    "tiled_delta": replace(GATED_DELTA, is_tiled=True),
    "mamba": MAMBA,
    "mamba_norm_first": replace(MAMBA, norm_before_gate=True, norm_groups=1, has_bias=True),
}


def hybrid_config(recurrence: Recurrence, *, num_layers: int = 3) -> ModelConfig:
    """Every layer but the second has the recurrence instead of attention."""

    def changed(index: int, layer: LayerConfig) -> LayerConfig:
        if index == 1:
            return replace(layer, attention=replace(layer.grouped_attention, has_output_gate=True))
        return replace(layer, attention=None, recurrence=recurrence)

    return with_layers(make_config(num_layers=num_layers), changed)


def parallel_config() -> ModelConfig:
    """Attention beside a recurrence in every layer (Falcon-H1)."""
    return with_layers(make_config(), lambda _, layer: replace(layer, recurrence=MAMBA))


def halves_config() -> ModelConfig:
    """Every layer is one thing: Mamba, experts without a gate, attention or an MLP (Nemotron-H)."""
    experts = ExpertsConfig(
        num_experts=4,
        num_experts_per_token=2,
        width=32,
        norm_topk_prob=True,
        activation=Activation.RELU_SQUARED,
        shared=MlpConfig(width=16, activation=Activation.RELU_SQUARED),
    )

    def changed(index: int, layer: LayerConfig) -> LayerConfig:
        attention = layer.grouped_attention
        return (
            LayerConfig(attention=None, recurrence=MAMBA),
            LayerConfig(attention=None, experts=experts),
            LayerConfig(attention=replace(attention, rope=None)),
            LayerConfig(
                attention=None, mlp=MlpConfig(width=48, activation=Activation.RELU_SQUARED)
            ),
        )[index]

    return with_layers(make_config(num_layers=4), changed)


def latent_config(*, query_rank: int | None = 24) -> ModelConfig:
    """Latent attention in every layer."""
    latent = replace(LATENT, query_rank=query_rank)
    return with_layers(
        make_config(rope=RopeConfig(theta=10000.0, rotary_dim=LATENT.rope_dim)),
        lambda _, layer: replace(layer, attention=latent),
    )
