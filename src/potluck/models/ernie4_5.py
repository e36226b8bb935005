"""ERNIE 4.5, dense (Baidu 2025): Llama with a rope that turns neighbours."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

# ``Ernie4_5Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": True,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    has_bias = fields.flag("use_bias", default=False)
    return hugging_face.read_config(
        fields.with_defaults(_DEFAULTS),
        family="ernie4_5",
        implemented=frozenset(),
        qkv_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=has_bias,
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return gguf.read_config(
        fields,
        source,
        family="ernie4_5",
        qkv_bias=dense.has_tensor(source, "blk.0.attn_q.bias"),
        output_bias=dense.has_tensor(source, "blk.0.attn_output.bias"),
        mlp_bias=dense.has_tensor(source, "blk.0.ffn_gate.bias"),
    )


ERNIE4_5 = Family(
    name="ernie4_5",
    architecture="Ernie4_5ForCausalLM",
    gguf_architectures=("ernie4_5",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.INTERLEAVED_NAMES,
)
