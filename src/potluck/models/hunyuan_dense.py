"""Hunyuan, dense (Tencent 2025): norms on every head of q and k, after rope."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_HEADS, MAX_WIDTH, Fields
from potluck.models.layers import with_attention
from potluck.models.names import HUGGING_FACE_NAMES, FileKind
from potluck.types.model import HeadNorm, ModelConfig
from potluck.types.tensor import TensorSource

_ALPHA_KEYS = frozenset({"alpha", "beta_fast", "beta_slow", "factor", "mscale", "mscale_all_dim"})
"""Keys that published files have next to ``alpha``, and that the family then ignores."""

# Keys of published files that the family implies.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "norm_type": ("rms",),
    "num_experts": (0, 1),
    "use_cla": (False,),
    "use_qk_norm": (True,),
    "use_rotary_pos_emb": (True,),
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults({"rms_norm_eps": 1e-5})
    fields.refuse_others(_NEUTRAL)
    config = hugging_face.read_config(
        _without_alpha(fields),
        # Published files set ``use_qk_norm``, which the family always has.
        implemented=frozenset({"num_experts", "use_qk_norm", "qk_norm"}),
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
    )
    return _with_norms_after_rope(config)


def _without_alpha(fields: Fields) -> Fields:
    """Return ``fields`` with ``alpha`` applied to ``rope_theta``.

    This is ``compute_ntk_alpha_rope_parameters`` of ``transformers``; without ``alpha``, scaling
    depends on the length of the sequence, which is rejected as unsupported.
    """
    sections = ((key, fields.section(key)) for key in ("rope_scaling", "rope_parameters"))
    key, rope = next((each for each in sections if each[1] is not None), ("", None))
    if rope is None or not rope.get("alpha") or hugging_face.rope_kind(rope) != "dynamic":
        return fields
    num_heads = fields.count("num_attention_heads", MAX_HEADS)
    share = fields.count("hidden_size", MAX_WIDTH) // num_heads
    head_dim = fields.count("head_dim", MAX_WIDTH, share)
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    base = theta * rope.positive("alpha") ** (head_dim / (head_dim - 2))
    default = {"rope_type": "default", "type": "default", "rope_theta": base}
    return fields.changed({key: rope.without(*_ALPHA_KEYS).changed(default).values})


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(fields, source, head_norm=HeadNorm.HEAD)
    return _with_norms_after_rope(config)


def _with_norms_after_rope(config: ModelConfig) -> ModelConfig:
    return with_attention(config, lambda _, each: dataclasses.replace(each, norms_after_rope=True))


HUNYUAN_DENSE = Family(
    name="hunyuan_v1_dense",
    architecture="HunYuanDenseV1ForCausalLM",
    gguf_architectures=("hunyuan-dense",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                "attn.q_norm": "self_attn.query_layernorm",
                "attn.k_norm": "self_attn.key_layernorm",
            }
        ),
    },
)
