"""OLMoE (Muennighoff et al. 2024): experts in every layer, and norms over the whole width of
queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.types.model import HeadNorm, ModelConfig

# ``OlmoeConfig`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "hidden_size": 2048,
    "intermediate_size": 2048,
    "max_position_embeddings": 4096,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "rms_norm_eps": 1e-5,
    "vocab_size": 50_304,
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    num_layers = hugging_face.num_hidden_layers(fields)
    experts = hugging_face.read_experts(
        fields,
        norm_topk_prob=fields.flag("norm_topk_prob", default=False),
        count_key="num_experts",
        num_layers=num_layers,
    )
    return hugging_face.read_config(
        fields,
        implemented=hugging_face.EXPERT_KEYS,
        reads_attention_bias=True,
        head_norm=HeadNorm.WIDTH,
        experts=(experts,) * num_layers,
    )


OLMOE = Family(
    name="olmoe",
    architecture="OlmoeForCausalLM",
    gguf_architectures=("olmoe",),
    from_hugging_face=_from_hugging_face,
    from_gguf=partial(
        gguf.read_expert_config,
        # As computed by llama.cpp's build_olmoe; it is not in the files.
        norm_topk_prob=False,
        width_key="feed_forward_length",
        head_norm=HeadNorm.WIDTH,
    ),
)
