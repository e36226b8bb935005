"""Hunyuan, dense, 0.5B to 7B (Tencent 2025): norms on every head after rope, which is stretched by
a constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_WIDTH, Fields
from potluck.models.layers import with_attention
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import HeadNorm, ModelConfig
from potluck.types.tensor import TensorSource

# ``HunYuanDenseV1Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {"rms_norm_eps": 1e-5, "max_position_embeddings": 2048}
_IMPLEMENTED = frozenset({"attention_bias", "num_experts", "use_qk_norm"})
# Keys of published files that say what the family is anyway.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "mlp_bias": (False,),
    "norm_type": ("rms",),
    "num_experts": (0, 1),
    "use_cla": (False,),
    "use_qk_norm": (True,),
    "use_rotary_pos_emb": (True,),
}
_ALPHA = "alpha"


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    dense.refuse_other_values(fields, _NEUTRAL)
    head_dim = fields.count("head_dim", MAX_WIDTH)
    attention_bias = fields.flag("attention_bias", default=False)
    config = hugging_face.read_config(
        _with_stretched_theta(fields, head_dim),
        family="hunyuan_v1_dense",
        implemented=_IMPLEMENTED,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        head_norm=HeadNorm.HEAD,
    )
    return _with_late_norms(config)


def _with_stretched_theta(fields: Fields, head_dim: int) -> Fields:
    """Rope that is called dynamic and has an ``alpha``: of a larger base, at every length."""
    rope = fields.section("rope_scaling") or fields.section("rope_parameters")
    if rope is None or not rope.get(_ALPHA):
        return fields
    if rope.text("rope_type", rope.text("type", "default")) != "dynamic" or head_dim <= 2:
        return fields  # which the reader refuses by the name of the key
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    stretched = theta * rope.positive(_ALPHA) ** (head_dim / (head_dim - 2))
    plain = dense.without(fields, "rope_scaling", "rope_parameters", "rope_theta")
    return plain.with_defaults({"rope_theta": stretched})


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields,
        source,
        family="hunyuan_v1_dense",
        qkv_bias=dense.has_tensor(source, "blk.0.attn_q.bias"),
        output_bias=dense.has_tensor(source, "blk.0.attn_output.bias"),
        head_norm=HeadNorm.HEAD,
    )
    return _with_late_norms(config)


def _with_late_norms(config: ModelConfig) -> ModelConfig:
    return with_attention(
        config, lambda _, attention: dataclasses.replace(attention, norms_after_rope=True)
    )


HUNYUAN = Family(
    name="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    gguf_architectures=("hunyuan-dense",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {"attn.q_norm": "self_attn.query_layernorm", "attn.k_norm": "self_attn.key_layernorm"}
        ),
        FileKind.GGUF: GGUF_NAMES,
    },
)
