"""Llama 1 to 3.3 (Touvron et al. 2023, Grattafiori et al. 2024), and models with the same
structure.

GGUF files of Mistral and Mixtral models also have the architecture ``llama``; their sliding window,
if the file has one, applies to every layer, and experts are in the layers that have a router.
"""

from __future__ import annotations

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.names import CONVERTED_NAMES
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource


def _from_hugging_face(fields: Fields) -> ModelConfig:
    return hugging_face.read_config(
        fields,
        implemented=frozenset({"mlp_bias"}),
        reads_attention_bias=True,
        mlp_bias=fields.flag("mlp_bias", default=False),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    experts = gguf.read_experts_of_layers(
        fields, source, norm_topk_prob=True, width_key="feed_forward_length"
    )
    return gguf.read_config(
        fields,
        source,
        implemented=frozenset({"attention.sliding_window"})
        | (gguf.EXPERT_KEYS if any(experts) else frozenset()),
        optional_biases=gguf.ALL_BIASES,
        sliding_window=gguf.read_window(fields),
        experts=experts,
    )


LLAMA = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    gguf_architectures=("llama",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=CONVERTED_NAMES,
)
