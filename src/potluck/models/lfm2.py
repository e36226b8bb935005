"""LFM2 and LFM2.5 (Liquid AI 2025): gated short convolutions in most layers, attention in others.

Some models have experts, with sigmoid routing and corrections, after some dense layers. The width
of the feed-forward part is derived from ``intermediate_size``: in some models it is two thirds of
it, rounded up. Of multimodal models, only the text part is used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_KERNEL, MAX_LAYERS, MAX_WIDTH, Fields
from potluck.models.layers import with_recurrence
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    NameTable,
    StoredPart,
    concatenated,
)
from potluck.types.model import ExpertsConfig, HeadNorm, ModelConfig, ShortConvConfig
from potluck.types.program import ExpertScore
from potluck.types.tensor import TensorSource

# ``Lfm2Config`` and ``Lfm2MoeConfig`` of transformers.
_COMMON_DEFAULTS: Mapping[str, object] = {
    "conv_L_cache": 3,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "vocab_size": 65_536,
}
_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "hidden_size": 2560,
    "intermediate_size": 12_288,
}
_MOE_DEFAULTS: Mapping[str, object] = {
    **_COMMON_DEFAULTS,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
_OLDER_TIE: Mapping[str, str] = {"tie_embedding": "tie_word_embeddings"}
_OLDER_NAMES: Mapping[str, str] = {"block_ff_dim": "intermediate_size", **_OLDER_TIE}
_CONV = "conv"
_KERNEL_KEY = "shortconv.l_cache"


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _with_older_names(fields, _OLDER_NAMES).with_defaults(_DEFAULTS)
    return _read_hugging_face(
        fields.changed({"intermediate_size": _feed_forward_width(fields)}),
        has_attention=_attention_layers(fields),
    )


def _with_older_names(fields: Fields, names: Mapping[str, str]) -> Fields:
    """Return the fields with values from older names of keys, which take precedence."""
    return fields.changed(
        {names[key]: value for key, value in fields.values.items() if key in names}
    )


def _read_hugging_face(
    fields: Fields,
    *,
    has_attention: tuple[bool, ...],
    experts: tuple[ExpertsConfig | None, ...] | None = None,
) -> ModelConfig:
    """Return a model with attention in some layers, and convolutions in the others."""
    config = hugging_face.read_config(
        fields.changed({"rms_norm_eps": fields.positive("norm_eps")}),
        implemented=(hugging_face.EXPERT_KEYS if experts else frozenset()) | {"layer_types"},
        head_norm=HeadNorm.HEAD,
        experts=experts,
    )
    conv = ShortConvConfig(
        kernel=fields.count("conv_L_cache", MAX_KERNEL, minimum=2),
        has_bias=fields.flag("conv_bias", default=False),
    )
    return with_recurrence(config, conv, has_attention)


def _feed_forward_width(fields: Fields) -> int:
    """Return the width as ``Lfm2MLP`` of transformers computes it."""
    width = fields.count("intermediate_size", MAX_WIDTH)
    if not fields.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(2 * width / 3)
    if fields.is_null("block_ffn_dim_multiplier"):
        return width
    width = int(fields.positive("block_ffn_dim_multiplier") * width)
    multiple = fields.count("block_multiple_of", MAX_WIDTH)
    return -(-width // multiple) * multiple


def _attention_layers(fields: Fields) -> tuple[bool, ...]:
    """Return the layers in ``layer_types`` or ``full_attn_idxs``; without either, all layers."""
    if fields.get("layer_types") is not None:
        return _attention_by_layer_type(fields)
    num_layers = hugging_face.num_hidden_layers(fields)
    if fields.get("full_attn_idxs") is None:
        return (True,) * num_layers
    chosen = fields.counts("full_attn_idxs", MAX_LAYERS)
    return tuple(layer in chosen for layer in range(num_layers))


def _attention_by_layer_type(fields: Fields) -> tuple[bool, ...]:
    """Return the layers that are attention, and not convolutions, in ``layer_types``."""
    kinds = fields.texts("layer_types")
    hugging_face.check_layer_kinds(fields, kinds, {_CONV, hugging_face.FULL})
    return tuple(kind == hugging_face.FULL for kind in kinds)


def _read_gguf(
    fields: Fields,
    source: TensorSource,
    *,
    implemented: frozenset[str] = frozenset(),
    experts: tuple[ExpertsConfig | None, ...] | None = None,
) -> ModelConfig:
    """Return a model with attention in layers that have key-value heads, and convolutions in
    others.
    """
    fields, has_attention = gguf.layers_with_attention(fields)
    config = gguf.read_config(
        fields,
        source,
        implemented=implemented | {_KERNEL_KEY},
        head_norm=HeadNorm.HEAD,
        experts=experts,
    )
    conv = ShortConvConfig(kernel=fields.count(_KERNEL_KEY, MAX_KERNEL, minimum=2))
    return with_recurrence(config, conv, has_attention)


_PROJECTED = ("conv.gate_in", "conv.gate_out", "conv.x")
"""The rows of one matrix: the gates before and after the convolution, and its input."""

_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
        {
            "attn_norm": "operator_norm",
            "attn.o": "self_attn.out_proj",
            "attn.q_norm": "self_attn.q_layernorm",
            "attn.k_norm": "self_attn.k_layernorm",
            **concatenated("conv.in_proj", *_PROJECTED),
            "conv.kernel": StoredPart(name="conv.conv", is_flat=True),
            "conv.out": "conv.out_proj",
            "mlp_norm": "ffn_norm",
            "mlp.gate": "feed_forward.w1",
            "mlp.up": "feed_forward.w3",
            "mlp.down": "feed_forward.w2",
            "mlp.router": "feed_forward.gate",
            "mlp.correction.weight": "feed_forward.expert_bias",
            "mlp.experts.gate": "feed_forward.experts.{expert}.w1",
            "mlp.experts.up": "feed_forward.experts.{expert}.w3",
            "mlp.experts.down": "feed_forward.experts.{expert}.w2",
        },
        stems={"norm": "model.embedding_norm"},
        skipped={
            "a vision tower": re.compile(r"model\.(?:vision_tower|multi_modal_projector)\."),
        },
    ),
    FileKind.GGUF: GGUF_NAMES.changed(
        {
            **concatenated("shortconv.in_proj", *_PROJECTED),
            "conv.kernel": StoredPart(name="shortconv.conv", is_flat=True),
            "conv.out": "shortconv.out_proj",
        },
        # llama.cpp's name of the last norm of these architectures.
        stems={"norm": "token_embd_norm"},
    ),
}


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _with_older_names(fields, _OLDER_TIE).with_defaults(_MOE_DEFAULTS)
    return _read_hugging_face(
        fields,
        has_attention=_attention_by_layer_type(fields),
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


def _moe_from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return _read_gguf(
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


LFM2 = Family(
    name="lfm2",
    architecture="Lfm2ForCausalLM",
    gguf_architectures=("lfm2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_read_gguf,
    names=_NAMES,
    wrappers={"lfm2_vl": "Lfm2VlForConditionalGeneration"},
)
LFM2_MOE = Family(
    name="lfm2_moe",
    architecture="Lfm2MoeForCausalLM",
    gguf_architectures=("lfm2moe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=_moe_from_gguf,
    names=_NAMES,
)
