"""DeepSeek's families with latent attention (DeepSeek-AI 2024; Kimi Team 2025).

V2-Lite has experts by softmax scores; V3, R1, V3.1 and Kimi K2 have grouped experts by sigmoid
scores with corrections. The scores of groups, by which the larger V2 chooses its experts, are not
supported. GGUF files of all models with latent attention belong to V3's family. Multi-token
prediction layers are skipped.
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
    return latent.read_hugging_face(fields, ExpertScore.SOFTMAX, has_experts)


# ``DeepseekV3Config`` of transformers.
_V3_DEFAULTS: Mapping[str, object] = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18_432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 2048,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-6,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
    "v_head_dim": 128,
    "vocab_size": 129_280,
}
# Fixed in the code of transformers, whatever the file says.
_V3_ACCEPTED: Mapping[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "scoring_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
}


def _v3_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_V3_DEFAULTS)
    fields.refuse_others(_V3_ACCEPTED)
    return latent.read_hugging_face(
        fields,
        ExpertScore.SIGMOID,
        latent.after_dense_layers(fields),
        is_interleaved=fields.truth("rope_interleave", default=True),
    )


DEEPSEEK_V2 = Family(
    name="deepseek_v2",
    architecture="DeepseekV2ForCausalLM",
    from_hugging_face=_from_hugging_face,
    names=NAMES,
)
DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    architecture="DeepseekV3ForCausalLM",
    gguf_architectures=("deepseek2",),
    from_hugging_face=_v3_from_hugging_face,
    from_gguf=latent.read_gguf,
    names=NAMES,
    aliases={"kimi_k2": "DeepseekV3ForCausalLM"},
)
