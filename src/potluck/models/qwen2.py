"""Qwen 2 and 2.5 (Yang et al. 2024): biases on q, k and v; sliding windows in upper layers."""

from __future__ import annotations

from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields, unsupported
from potluck.types.model import ModelConfig


def _from_hugging_face(fields: Fields) -> ModelConfig:
    # The family always has these biases; a file that says otherwise is of another architecture.
    if not fields.flag("attention_bias", default=True):
        raise unsupported("attention_bias=False in the family qwen2")
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 32}),
        implemented=hugging_face.WINDOW_KEYS | {"attention_bias"},
        qkv_bias=True,
        sliding_windows=hugging_face.windows_by_layer_type(fields),
    )


QWEN2 = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    gguf_architectures=("qwen2",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, qkv_bias=True),
)
