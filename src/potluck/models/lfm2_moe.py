"""LFM2 with experts (Liquid AI 2025): sigmoid routing with corrections, after some dense layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face, lfm2
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, Fields
from potluck.types.model import ExpertsConfig, ModelConfig
from potluck.types.program import ExpertScore
from potluck.types.tensor import TensorSource

# ``Lfm2MoeConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "conv_L_cache": 3,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "max_position_embeddings": 128_000,
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 65_536,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = lfm2.with_older_names(fields, lfm2.OLDER_TIE).with_defaults(_DEFAULTS)
    return lfm2.read_hugging_face(
        fields,
        has_attention=lfm2.layers_with_attention(fields),
        experts=_experts(fields),
    )


def _experts(fields: Fields) -> tuple[ExpertsConfig | None, ...]:
    """Return the experts, for every layer after the first dense ones."""
    num_layers = hugging_face.num_hidden_layers(fields)
    experts = hugging_face.read_experts(
        fields,
        norm_topk_prob=fields.flag("norm_topk_prob", default=True),
        count_key="num_experts",
        width_key="moe_intermediate_size",
        num_layers=num_layers,
    )
    experts = dataclasses.replace(
        experts,
        score=ExpertScore.SIGMOID,
        share_scale=fields.positive("routed_scaling_factor", 1.0),
        has_score_correction_bias=fields.flag("use_expert_bias", default=True),
    )
    num_dense = fields.count("num_dense_layers", MAX_LAYERS, minimum=0)
    return tuple(None if layer < num_dense else experts for layer in range(num_layers))


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return lfm2.read_gguf(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS | gguf.PLACE_KEYS,
        experts=gguf.read_experts_of_layers(
            # As computed by llama.cpp; it is not in the files.
            fields,
            source,
            norm_topk_prob=True,
            score=ExpertScore.SIGMOID,
        ),
    )


LFM2_MOE = Family(
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    gguf_architectures=("lfm2moe",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=lfm2.NAMES,
)
