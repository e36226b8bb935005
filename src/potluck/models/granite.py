"""Granite 3 and 4, dense (IBM 2024 and 2025): Llama with several multipliers.

Dense Granite 4 models have the model type ``granitemoehybrid``. Their GGUF files have the
architecture ``granite``.
"""

from __future__ import annotations

import dataclasses

from potluck.models import gguf, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import Fields, unsupported
from potluck.models.layers import with_attention, with_layers
from potluck.models.names import CONVERTED_NAMES
from potluck.types.model import ExpertsConfig, LayerConfig, ModelConfig
from potluck.types.tensor import TensorSource

_IMPLEMENTED = frozenset(
    {
        "attention_multiplier",
        "embedding_multiplier",
        "logits_scaling",
        "residual_multiplier",
    }
)
IS_TURNED = "rope.scaling.finetuned"
"""In GGUF files: whether there is rope at all."""
GGUF_SCALES = frozenset({"attention.scale", "embedding_scale", "logit_scale", "residual_scale"})
"""The keys that ``with_gguf_multipliers`` implements."""
GGUF_KEYS = GGUF_SCALES | {IS_TURNED}
"""Keys read here in addition to those of all architectures."""
# Written by the converter for models without such layers.
_UNUSED_GGUF_KEYS = mamba_fields.GGUF_KEYS | {"expert_shared_feed_forward_length"}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return read_hugging_face(
        fields,
        mlp_bias=fields.flag("mlp_bias", default=False),
        implemented=frozenset({"mlp_bias"}),
    )


def read_hugging_face(
    fields: Fields,
    *,
    mlp_bias: bool = False,
    implemented: frozenset[str] = frozenset(),
    experts: tuple[ExpertsConfig, ...] | None = None,
) -> ModelConfig:
    """Return a model with multipliers; it reads the keys ``implemented`` itself."""
    config = hugging_face.read_config(
        fields,
        implemented=_IMPLEMENTED | implemented,
        reads_attention_bias=True,
        mlp_bias=mlp_bias,
        experts=experts,
    )
    return _with_multipliers(
        config,
        scale=fields.positive("attention_multiplier", 1.0),
        embedding=fields.positive("embedding_multiplier", 1.0),
        residual=fields.positive("residual_multiplier", 1.0),
        logits=fields.positive("logits_scaling", 1.0),
    )


def _with_multipliers(
    config: ModelConfig, *, scale: float, embedding: float, residual: float, logits: float
) -> ModelConfig:
    def change(_: int, layer: LayerConfig) -> LayerConfig:
        attention = dataclasses.replace(layer.grouped_attention, scale=scale)
        return dataclasses.replace(layer, attention=attention, residual_scale=residual)

    return dataclasses.replace(
        with_layers(config, change), embedding_scale=embedding, logit_scale=1 / logits
    )


def without_rope(config: ModelConfig) -> ModelConfig:
    """Return ``config`` with attention without rope."""
    config = with_attention(config, lambda _, each: dataclasses.replace(each, rope=None))
    return dataclasses.replace(config, ropes=())


def with_gguf_multipliers(config: ModelConfig, fields: Fields) -> ModelConfig:
    """Return ``config`` with the scales of a GGUF file; 0 means absent, as in llama.cpp."""
    return _with_multipliers(
        config,
        scale=fields.nonzero("attention.scale", config.layers[0].grouped_attention.scale),
        embedding=fields.nonzero("embedding_scale", 1.0),
        residual=fields.nonzero("residual_scale", 1.0),
        logits=fields.nonzero("logit_scale", 1.0),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    fields.positive("logit_scale")  # llama.cpp requires it
    fields, has_attention = gguf.layers_with_attention(fields)
    if not all(has_attention):
        raise unsupported(f"{fields.prefix}attention.head_count_kv=0")
    config = gguf.read_config(
        fields,
        source,
        implemented=GGUF_KEYS | _UNUSED_GGUF_KEYS,
        optional_biases=gguf.ALL_BIASES,
    )
    config = with_gguf_multipliers(config, fields)
    is_turned = fields.flag(IS_TURNED, default=True)
    return config if is_turned else without_rope(config)


GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    gguf_architectures=("granite",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=CONVERTED_NAMES,
)
