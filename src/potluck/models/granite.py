"""Granite 3 and 4, dense (IBM 2024 and 2025), and Granite 3 with experts (IBM Granite Team 2024).

Both are Llama with multipliers of embeddings, attention scores, branches and logits; the latter has
experts in every layer, in some models a shared expert. Dense Granite 4 models have the model type
``granitemoehybrid``. Their GGUF files have the architecture ``granite``. Hugging Face files store
gate and up of every expert, including the shared one, as one matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face, mamba_fields
from potluck.models.family import Family
from potluck.models.fields import MAX_WIDTH, Fields, unsupported
from potluck.models.layers import with_attention, with_layers
from potluck.models.names import (
    CONVERTED_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    StoredPart,
    concatenated,
)
from potluck.types.model import ExpertsConfig, LayerConfig, MlpConfig, ModelConfig
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
    """Return a model with multipliers; the family reads the keys ``implemented`` itself."""
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


# ``GraniteMoeConfig`` of transformers.
_MOE_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "vocab_size": 32_000,
}
_MOE_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "normalization_function": ("rmsnorm",),
    "position_embedding_type": ("rope",),
}
EXPERT_STEMS: Mapping[str, str | StoredPart] = {
    "mlp.router": "block_sparse_moe.router.layer",
    **concatenated("block_sparse_moe.input_linear", "mlp.experts.gate", "mlp.experts.up"),
    "mlp.experts.down": "block_sparse_moe.output_linear",
    **concatenated("shared_mlp.input_linear", "mlp.shared.gate", "mlp.shared.up"),
    "mlp.shared.down": "shared_mlp.output_linear",
}
"""Stems of a layer's experts in Hugging Face files."""


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    return _read_moe(fields, shared=None)


def _shared_from_hugging_face(fields: Fields) -> ModelConfig:
    width = fields.count("shared_intermediate_size", MAX_WIDTH, 0, minimum=0)
    return _read_moe(fields, shared=MlpConfig(width=width) if width else None)


def _read_moe(fields: Fields, *, shared: MlpConfig | None) -> ModelConfig:
    fields = fields.with_defaults(_MOE_DEFAULTS)
    fields.refuse_others(_MOE_ACCEPTED)
    return read_hugging_face(
        fields,
        implemented=hugging_face.EXPERT_KEYS,
        experts=read_experts(fields, shared=shared),
    )


def read_experts(fields: Fields, *, shared: MlpConfig | None) -> tuple[ExpertsConfig, ...]:
    """Return the experts of every layer, with the shared one."""
    experts = hugging_face.read_experts(fields, norm_topk_prob=True)
    experts = dataclasses.replace(experts, shared=shared)
    return (experts,) * hugging_face.num_hidden_layers(fields)


def _moe_from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_expert_config(
        fields,
        source,
        norm_topk_prob=True,
        width_key="feed_forward_length",
        implemented=gguf.PLACE_KEYS | GGUF_SCALES,
        optional_biases=gguf.ATTENTION_BIASES,
    )
    return with_gguf_multipliers(config, fields)


_MOE_NAMES = {
    **CONVERTED_NAMES,
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(EXPERT_STEMS),
}


GRANITE = Family(
    name="granite",
    architecture="GraniteForCausalLM",
    gguf_architectures=("granite",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=CONVERTED_NAMES,
)
GRANITE_MOE = Family(
    name="granitemoe",
    architecture="GraniteMoeForCausalLM",
    gguf_architectures=("granitemoe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=_moe_from_gguf,
    names=_MOE_NAMES,
)
GRANITE_MOE_SHARED = Family(
    name="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    from_hugging_face=_shared_from_hugging_face,
    names=_MOE_NAMES,
)
