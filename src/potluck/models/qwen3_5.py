"""Qwen 3.5, 3.6 and 3.8 (Qwen Team 2026), the text part: the layers of Qwen3-Next, with a separate
matrix for each projection of the gated delta nets, with experts or without.

The positions of text are equal in all sections of the rotation for images (``mrope_section``), so
it is plain rope. Vision and multi-token prediction are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from potluck.models import qwen3_next
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.qwen2 import read_experts_by_step
from potluck.models.qwen3_next import GGUF_EXPERT_KEYS, names_of, read_text_config
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

# ``Qwen3_5TextConfig`` and ``Qwen3_5MoeTextConfig`` of transformers.
_COMMON_DEFAULTS: Mapping[str, object] = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 32_768,
    "num_attention_heads": 16,
    "vocab_size": 248_320,
}
_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
_MOE_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "moe_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
    "shared_expert_intermediate_size": 512,
}

_SECTION_KEYS = ("mrope_section", "mrope_interleaved")
_ROPES = ("rope_parameters", "rope_scaling")


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _without_sections(fields).with_defaults(_DEFAULTS)
    return read_text_config(fields)


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _without_sections(fields).with_defaults(_MOE_DEFAULTS)
    # As in ``Qwen3_5MoeTopKRouter`` of transformers, whatever the file says.
    fields = fields.changed({"norm_topk_prob": True})
    return read_text_config(fields, experts=read_experts_by_step(fields))


def _without_sections(fields: Fields) -> Fields:
    """Return ``fields`` without the division of rotations among image coordinates."""
    return fields.changed(
        {
            key: section.without(*_SECTION_KEYS).values
            for key in _ROPES
            if (section := fields.section(key)) is not None
        }
    )


def _read_gguf(
    fields: Fields,
    source: TensorSource,
    *,
    implemented: frozenset[str] = frozenset(),
) -> ModelConfig:
    return qwen3_next.read_gguf(
        fields.without("rope.dimension_sections"),
        source,
        implemented=implemented,
        is_tiled=True,
    )


_NAMES = names_of(
    {
        "delta.qkv": "linear_attn.in_proj_qkv",
        "delta.gate": "linear_attn.in_proj_z",
        "delta.beta": "linear_attn.in_proj_b",
        "delta.decay": "linear_attn.in_proj_a",
    },
    {"delta.beta": "ssm_beta", "delta.decay": "ssm_alpha"},
    skipped={"a vision tower": re.compile(r"(model\.)?visual\..+")},
)

QWEN3_5 = Family(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    gguf_architectures=("qwen35",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_read_gguf,
    names=_NAMES,
    wrappers={"qwen3_5": "Qwen3_5ForConditionalGeneration"},
)

QWEN3_5_MOE = Family(
    name="qwen3_5_moe_text",
    architecture="Qwen3_5MoeForCausalLM",
    gguf_architectures=("qwen35moe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=partial(_read_gguf, implemented=GGUF_EXPERT_KEYS),
    names=_NAMES,
    wrappers={"qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration"},
)
