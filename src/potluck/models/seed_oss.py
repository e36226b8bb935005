"""Seed-OSS (ByteDance 2025): Llama with biases on q, k and v."""

from __future__ import annotations

from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import GGUF_NAMES, FileKind
from potluck.types.model import ModelConfig


def _from_hugging_face(fields: Fields) -> ModelConfig:
    # The defaults of ``SeedOssConfig``; dropout is for training.
    return hugging_face.read_config(
        fields.with_defaults({"head_dim": 128, "num_key_value_heads": 8}),
        implemented=frozenset({"attention_bias", "mlp_bias"}),
        qkv_bias=fields.flag("attention_bias", default=True),
        output_bias=fields.flag("attention_out_bias", default=False),
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


SEED_OSS = Family(
    name="seed_oss",
    architecture="SeedOssForCausalLM",
    gguf_architectures=("seed_oss",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, optional_biases=gguf.ATTENTION_BIASES),
    names={
        FileKind.GGUF: GGUF_NAMES.changed({"mlp_norm": "post_attention_norm"}),
    },
)
