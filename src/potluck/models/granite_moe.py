"""Granite 3 with experts (IBM Granite Team 2024): experts in every layer, in some models a shared
expert, and multipliers of embeddings, attention scores, branches and logits.

Hugging Face files store gate and up of every expert, including the shared one, as one matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, granite, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_WIDTH, Fields
from potluck.models.names import (
    CONVERTED_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    StoredPart,
    concatenated,
)
from potluck.types.model import ExpertsConfig, MlpConfig, ModelConfig
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
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
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


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return _read_hugging_face(fields, shared=None)


def _shared_from_hugging_face(fields: Fields) -> ModelConfig:
    width = fields.count("shared_intermediate_size", MAX_WIDTH, 0, minimum=0)
    return _read_hugging_face(fields, shared=MlpConfig(width=width) if width else None)


def _read_hugging_face(fields: Fields, *, shared: MlpConfig | None) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    return granite.read_hugging_face(
        fields,
        implemented=hugging_face.EXPERT_KEYS,
        experts=read_experts(fields, shared=shared),
    )


def read_experts(fields: Fields, *, shared: MlpConfig | None) -> tuple[ExpertsConfig, ...]:
    """Return the experts of every layer, with the shared one."""
    experts = hugging_face.read_experts(fields, norm_topk_prob=True)
    experts = dataclasses.replace(experts, shared=shared)
    return (experts,) * hugging_face.num_hidden_layers(fields)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS | gguf.PLACE_KEYS | granite.GGUF_SCALES,
        optional_biases=gguf.ATTENTION_BIASES,
        experts=gguf.read_experts_of_layers(
            fields, source, norm_topk_prob=True, width_key="feed_forward_length"
        ),
    )
    return granite.with_gguf_multipliers(config, fields)


_NAMES = {
    **CONVERTED_NAMES,
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(EXPERT_STEMS),
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
    from_hugging_face=_shared_from_hugging_face,
    names=_NAMES,
)
