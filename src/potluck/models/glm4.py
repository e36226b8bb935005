"""GLM-4-0414 and GLM-Z1, 9B and 32B (Zhipu AI 2025): norms around each branch, and interleaved rope
on half of each head.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.layers import with_layers
from potluck.models.names import (
    FUSED_GATE_UP,
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    INTERLEAVED_HEADS,
    INTERLEAVED_PROJECTIONS,
    FileKind,
)
from potluck.types.model import ModelConfig, NormPlaces
from potluck.types.tensor import TensorSource

# ``Glm4Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 0.00000015625,
    "attention_bias": True,
}
_ROTARY_SHARE = 0.5


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    config = hugging_face.read_config(
        fields,
        implemented=frozenset({"attention_bias"}),
        qkv_bias=fields.flag("attention_bias", default=True),
        default_rotary_share=_ROTARY_SHARE,
    )
    return _with_norms(config)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    biases = frozenset({"attn_q"})
    return _with_norms(gguf.read_config(fields, source, optional_biases=biases))


def _with_norms(config: ModelConfig) -> ModelConfig:
    return with_layers(
        config, lambda _, layer: dataclasses.replace(layer, norms=NormPlaces.SANDWICH)
    )


GLM4 = Family(
    name="glm4",
    architecture="Glm4ForCausalLM",
    gguf_architectures=("glm4",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            {
                **INTERLEAVED_PROJECTIONS,
                **FUSED_GATE_UP[FileKind.HUGGING_FACE],
                "attn_post_norm": "post_self_attn_layernorm",
                "mlp_post_norm": "post_mlp_layernorm",
            }
        ),
        FileKind.GGUF: GGUF_NAMES.changed(
            {
                **INTERLEAVED_HEADS,
                **FUSED_GATE_UP[FileKind.GGUF],
                **gemma.GGUF_STEMS,
            }
        ),
    },
)
