"""Qwen 3 with experts (Yang et al. 2025): the attention of Qwen 3, and in most layers a mixture of
experts in place of the MLP. There are no shared experts.
"""

from __future__ import annotations

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.types.model import HeadNorm, ModelConfig
from potluck.types.tensor import TensorSource


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 4}),
        implemented=hugging_face.EXPERT_KEYS | {"sliding_window", "use_sliding_window"},
        reads_attention_bias=True,
        head_norm=HeadNorm.HEAD,
        sliding_windows=(hugging_face.enabled_window(fields),)
        * hugging_face.num_hidden_layers(fields),
        experts=hugging_face.experts_by_step(fields),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    return gguf.read_config(
        fields,
        source,
        implemented=gguf.EXPERT_KEYS,
        head_norm=HeadNorm.HEAD,
        # As computed by llama.cpp's build_qwen3moe; it is not in the files.
        experts=gguf.read_experts_of_layers(fields, source, norm_topk_prob=True),
    )


QWEN3_MOE = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    gguf_architectures=("qwen3moe",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
)
