"""DeepSeek-V2-Lite (DeepSeek-AI 2024): latent attention, and experts by softmax scores.

The scores of groups, by which the larger V2 chooses its experts, are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import latent
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.latent import NAMES
from potluck.types.model import ModelConfig
from potluck.types.program import ExpertScore

# ``DeepseekV2Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "first_k_dense_replace": 0,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "kv_lora_rank": 512,
    "max_position_embeddings": 2048,
    "moe_intermediate_size": 1407,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 1.0,
    "v_head_dim": 128,
    "vocab_size": 102_400,
}
# ``group_limited_greedy`` scores groups by their best expert. transformers does not read the other
# keys; DeepSeek's own code does.
_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "norm_topk_prob": (False,),
    "scoring_func": ("softmax",),
    "topk_method": ("greedy",),
}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    fields.refuse_others(_ACCEPTED)
    has_experts = latent.after_dense_layers(fields)
    experts = latent.read_experts_of_layers(fields, ExpertScore.SOFTMAX, has_experts)
    return latent.read_hugging_face(fields, experts=experts)


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    from_hugging_face=_from_hugging_face,
    names=NAMES,
)
