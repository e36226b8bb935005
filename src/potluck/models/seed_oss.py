"""Seed-OSS 36B (ByteDance 2025): Llama with biases of queries, keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

# ``SeedOssConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 524_288,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields.with_defaults(_DEFAULTS),
        family="seed_oss",
        implemented=frozenset({"attention_bias", "mlp_bias"}),
        qkv_bias=fields.flag("attention_bias", default=True),
        output_bias=fields.flag("attention_out_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return gguf.read_config(
        fields,
        source,
        family="seed_oss",
        qkv_bias=dense.has_tensor(source, "blk.0.attn_q.bias"),
        output_bias=dense.has_tensor(source, "blk.0.attn_output.bias"),
        mlp_bias=dense.has_tensor(source, "blk.0.ffn_gate.bias"),
    )


SEED_OSS = Family(
    name="seed_oss",
    architecture="SeedOssForCausalLM",
    gguf_architectures=("seed_oss",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names={
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES,
        FileKind.GGUF: GGUF_NAMES.changed({"mlp_norm": "post_attention_norm"}),
    },
)
