"""Phi-3 to Phi-4 and Phi-4-mini (Abdin et al. 2024): fused matrices, partial rope and LongRoPE.

llama.cpp ignores the sliding window in GGUF files of Phi-3; Potluck applies it, like
``transformers``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import (
    FUSED_GATE_UP,
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    FileKind,
    concatenated,
)
from potluck.types.model import ModelConfig, RopeConfig, RopeScaling
from potluck.types.tensor import TensorSource

# ``Phi3Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 4096,
}
_OLDER_NAMES = ("su", "yarn")
"""Older files' name of LongRoPE."""
_GGUF_KEYS = frozenset({"attention.sliding_window"})
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
_QKV = ("attn.q", "attn.k", "attn.v")


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = _with_newer_names(fields.with_defaults(_DEFAULTS))
    return hugging_face.read_config(
        fields,
        implemented=frozenset({"sliding_window"}),
        sliding_windows=hugging_face.equal_windows(fields),
        default_rotary_share=1.0,
    )


def _with_newer_names(fields: Fields) -> Fields:
    return fields.changed(
        {
            key: rope.changed({"rope_type": "longrope", "type": "longrope"}).values
            for key in ("rope_scaling", "rope_parameters")
            if (rope := fields.section(key)) is not None
            and hugging_face.rope_kind(rope) in _OLDER_NAMES
        }
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    plain = fields
    has_factors = not {_LONG, _SHORT}.isdisjoint(source.names())
    if has_factors:
        plain = fields.without("rope.scaling.attn_factor", "rope.scaling.type")
    config = gguf.read_config(
        plain, source, implemented=_GGUF_KEYS, sliding_window=gguf.read_window(fields)
    )
    if not has_factors:
        return config
    return dataclasses.replace(config, ropes=(_read_longrope(fields, source, config.ropes[0]),))


def _read_longrope(fields: Fields, source: TensorSource, plain: RopeConfig) -> RopeConfig:
    num_pairs = plain.rotary_dim // 2
    return dataclasses.replace(
        plain,
        scaling=RopeScaling.LONGROPE,
        original_context_tokens=gguf.trained_context(fields),
        long_factors=gguf.read_factors(fields, source, _LONG, num_pairs),
        short_factors=gguf.read_factors(fields, source, _SHORT, num_pairs),
        attention_factor=fields.positive("rope.scaling.attn_factor", 1.0),
    )


PHI3 = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    gguf_architectures=("phi3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                **concatenated("self_attn.qkv_proj", *_QKV),
                **FUSED_GATE_UP[FileKind.HUGGING_FACE],
            }
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {**concatenated("attn_qkv", *_QKV), **FUSED_GATE_UP[FileKind.GGUF]},
            ignored=(_LONG, _SHORT),
        ),
    },
)
