"""Qwen 3 (Yang et al. 2025): norms on heads of q and k.

Dense models may have sliding windows in upper layers. Models with experts have them in place of
the MLP in most layers, and no shared experts.
"""

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


def _moe_from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 4}),
        implemented=hugging_face.EXPERT_KEYS | {"sliding_window", "use_sliding_window"},
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        sliding_windows=(hugging_face.enabled_window(fields),)
        * hugging_face.num_hidden_layers(fields),
        experts=hugging_face.experts_by_step(fields),
    )


QWEN3 = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    gguf_architectures=("qwen3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(gguf.read_config, head_norm=HeadNorm.HEAD),
)
QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    gguf_architectures=("qwen3moe",),
    from_hugging_face=_moe_from_hugging_face,
    from_gguf=partial(
        gguf.read_expert_config,
        # As computed by llama.cpp's build_qwen3moe; it is not in the files.
        norm_topk_prob=True,
        head_norm=HeadNorm.HEAD,
    ),
)
