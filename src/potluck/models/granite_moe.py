"""Granite 3 with experts (IBM Granite Team 2024): experts in every layer, in some models a shared
expert, and multipliers of embeddings, attention scores, branches and logits.

Hugging Face files store gate and up of every expert, including the shared one, as one matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_WIDTH, Fields, read_experts
from potluck.models.layers import with_layers
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    INTERLEAVED_HEADS,
    FileKind,
    StoredPart,
)
from potluck.types.model import LayerConfig, MlpConfig, ModelConfig
from potluck.types.tensor import TensorSource

# ``GraniteMoeConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "max_position_embeddings": 2048,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_local_experts": 8,
    "vocab_size": 32_000,
}
_MULTIPLIERS = frozenset(
    {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"}
)
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "normalization_function": ("rmsnorm",),
    "position_embedding_type": ("rope",),
}
_GGUF_SCALES = frozenset({"attention.scale", "embedding_scale", "logit_scale", "residual_scale"})


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return _read_hugging_face(fields, "granitemoe", shared=None)


def _shared_from_hugging_face(fields: Fields) -> ModelConfig:
    width = fields.count("shared_intermediate_size", MAX_WIDTH, 0, minimum=0)
    return _read_hugging_face(
        fields, "granitemoeshared", shared=MlpConfig(width=width) if width else None
    )


def _read_hugging_face(fields: Fields, family: str, *, shared: MlpConfig | None) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    num_layers = hugging_face.num_hidden_layers(fields)
    attention_bias = fields.flag("attention_bias", default=False)
    experts = dataclasses.replace(
        read_experts(
            fields,
            hidden_size=fields.count("hidden_size", MAX_WIDTH),
            norm_topk_prob=True,
            count_key="num_local_experts",
            used_key="num_experts_per_tok",
            width_key="intermediate_size",
        ),
        shared=shared,
    )
    config = hugging_face.read_config(
        fields,
        family=family,
        implemented=hugging_face.EXPERT_KEYS | _MULTIPLIERS | {"attention_bias"},
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        experts=(experts,) * num_layers,
    )
    return _with_multipliers(
        config,
        attention=fields.positive("attention_multiplier", 1.0),
        embedding=fields.positive("embedding_multiplier", 1.0),
        residual=fields.positive("residual_multiplier", 1.0),
        logits_divisor=fields.positive("logits_scaling", 1.0),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    config = gguf.read_config(
        fields,
        source,
        family="granitemoe",
        implemented=gguf.EXPERT_KEYS | gguf.PLACE_KEYS | _GGUF_SCALES,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        experts=gguf.read_experts_of_layers(
            fields, source, norm_topk_prob=True, width_key="feed_forward_length"
        ),
    )

    def scale(key: str, default: float) -> float:
        # In llama.cpp, 0 means absent.
        return fields.positive(key) if fields.get(key) else default

    return _with_multipliers(
        config,
        attention=scale("attention.scale", config.layers[0].grouped_attention.scale),
        embedding=scale("embedding_scale", 1.0),
        residual=scale("residual_scale", 1.0),
        logits_divisor=scale("logit_scale", 1.0),
    )


def _with_multipliers(
    config: ModelConfig,
    *,
    attention: float,
    embedding: float,
    residual: float,
    logits_divisor: float,
) -> ModelConfig:
    def change(_: int, layer: LayerConfig) -> LayerConfig:
        return dataclasses.replace(
            layer,
            attention=dataclasses.replace(layer.grouped_attention, scale=attention),
            residual_scale=residual,
        )

    return dataclasses.replace(
        with_layers(config, change), embedding_scale=embedding, logit_scale=1 / logits_divisor
    )


_NAMES = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
        {
            "mlp.router": "block_sparse_moe.router.layer",
            "mlp.experts.gate": StoredPart(name="block_sparse_moe.input_linear", is_part=True),
            "mlp.experts.up": StoredPart(
                name="block_sparse_moe.input_linear", after=("mlp.experts.gate",)
            ),
            "mlp.experts.down": "block_sparse_moe.output_linear",
            "mlp.shared.gate": StoredPart(name="shared_mlp.input_linear", is_part=True),
            "mlp.shared.up": StoredPart(name="shared_mlp.input_linear", after=("mlp.shared.gate",)),
            "mlp.shared.down": "shared_mlp.output_linear",
        }
    ),
    FileKind.GGUF: GGUF_NAMES.changed(INTERLEAVED_HEADS),
}

GRANITE_MOE = Family(
    name="granitemoe",
    architecture="GraniteMoeForCausalLM",
    gguf_architectures=("granitemoe",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=_NAMES,
)
GRANITE_MOE_SHARED = Family(
    name="granitemoeshared",
    architecture="GraniteMoeSharedForCausalLM",
    gguf_architectures=(),
    from_hugging_face=_shared_from_hugging_face,
    from_gguf=None,
    names=_NAMES,
)
