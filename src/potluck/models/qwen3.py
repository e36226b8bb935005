"""Qwen 3, dense (Yang et al. 2025): norms on heads of q and k; sliding windows in upper layers."""

from __future__ import annotations

from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.types.model import HeadNorm, ModelConfig


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 32}),
        implemented=hugging_face.WINDOW_KEYS,
        default_head_dim=128,
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        sliding_windows=hugging_face.windows_by_layer_type(fields),
    )


QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_architectures=("qwen3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, head_norm=HeadNorm.HEAD),
)
