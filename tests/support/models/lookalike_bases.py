"""A small model of every family, which its look-alikes differ from in one value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.models.lookalikes import Base

_FEW: Mapping[str, Any] = {"num_local_experts": 7, "num_experts_per_tok": 3}
_MULTIPLIERS: Mapping[str, Any] = {
    "attention_multiplier": 0.1,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
}
_MAMBA: Mapping[str, Any] = {
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 64,
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
}
_THETA: Mapping[str, Any] = {"rope_type": "default", "rope_theta": 500.0}
_OLD_ROPE: Mapping[str, Any] = {"rope_parameters": _THETA}
_TWO_ROPES: Mapping[str, Any] = {
    "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
_TWO_KINDS: Mapping[str, Any] = {
    "sliding_window": 9,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
_GEMMA: Mapping[str, Any] = {"head_dim": 24, "tie_word_embeddings": True, **_TWO_KINDS}
_GEMMA4: Mapping[str, Any] = {
    **_GEMMA,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 1.5,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
_LATENT: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
}
_YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
_GATED_DELTA: Mapping[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 48,
}
_WITH_SHARED_EXPERT: Mapping[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
_SECTIONS: Mapping[str, Any] = {
    "rope_parameters": {
        **_THETA,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    }
}

_NEMOTRON_H: Mapping[str, Any] = {
    "num_hidden_layers": None,
    "head_dim": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 24,
    "n_groups": 2,
    "ssm_state_size": 16,
    "chunk_size": 16,
}

BASES = (
    Base(family="llama", settings=_OLD_ROPE),
    Base(family="mistral", settings={"sliding_window": 9, **_OLD_ROPE}),
    Base(family="qwen2", settings={"use_sliding_window": True, **_TWO_KINDS, **_OLD_ROPE}),
    Base(
        family="qwen3",
        settings={"head_dim": 24, "use_sliding_window": True, **_TWO_KINDS, **_OLD_ROPE},
    ),
    Base(
        family="qwen3_moe",
        settings={
            "head_dim": 24,
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="gemma2",
        settings={
            **_GEMMA,
            "query_pre_attn_scalar": 40,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="gemma3_text",
        settings={**_GEMMA, "query_pre_attn_scalar": 40, "rope_parameters": _TWO_ROPES},
    ),
    Base(
        family="gemma4_text",
        settings={**_GEMMA4, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 97},
    ),
    Base(
        name="gemma4_text-experts",
        has_ropes=False,
        family="gemma4_text",
        settings={
            **_GEMMA4,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 97,
            "enable_moe_block": True,
            "num_experts": 7,
            "top_k_experts": 3,
            "moe_intermediate_size": 48,
        },
    ),
    Base(
        name="gemma4_text-per-layer",
        has_ropes=False,
        family="gemma4_text",
        settings={
            **_GEMMA4,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 97,
            "num_hidden_layers": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 3,
            "use_double_wide_mlp": True,
        },
    ),
    Base(family="gemma4_unified_text", settings=_GEMMA4),
    Base(family="phi3", settings={"sliding_window": 9, **_OLD_ROPE}),
    Base(
        name="phi3-longrope",
        family="phi3",
        settings={
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 500.0,
                "short_factor": [1.0 + 0.1 * pair for pair in range(9)],
                "long_factor": [2.0 + 0.5 * pair for pair in range(9)],
            },
        },
    ),
    Base(
        family="ministral3",
        settings={
            "head_dim": 24,
            "rope_parameters": {
                **_YARN,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.2,
            },
        },
    ),
    Base(
        family="smollm3",
        settings={
            "use_sliding_window": True,
            "sliding_window": 9,
            "no_rope_layers": [1, 0, 1],
            **_OLD_ROPE,
        },
    ),
    Base(family="granite", settings={**_MULTIPLIERS, **_OLD_ROPE}),
    Base(
        family="granitemoehybrid",
        settings={
            **_MULTIPLIERS,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 160,
            "layer_types": ["attention"] * 3,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
            "mamba_d_head": 24,
            **_OLD_ROPE,
        },
    ),
    Base(
        name="granitemoehybrid-mamba",
        has_ropes=False,
        family="granitemoehybrid",
        settings={**_MULTIPLIERS, **_MAMBA, "num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    Base(
        name="granitemoehybrid-experts",
        has_ropes=False,
        family="granitemoehybrid",
        settings={**_FEW, **_MULTIPLIERS, **_MAMBA, "mamba_n_groups": 2},
    ),
    Base(family="glm4", settings={"head_dim": 24, "attention_bias": True, **_OLD_ROPE}),
    Base(
        family="seed_oss",
        settings={"attention_bias": True, "attention_out_bias": False, "head_dim": 24, **_OLD_ROPE},
    ),
    Base(family="hunyuan_v1_dense", settings={"head_dim": 24, **_OLD_ROPE}),
    Base(family="ernie4_5", settings={"head_dim": 24, "tie_word_embeddings": True, **_OLD_ROPE}),
    Base(
        family="cohere2",
        settings={**_TWO_KINDS, "logit_scale": 2.0, "tie_word_embeddings": True, **_OLD_ROPE},
    ),
    Base(family="exaone4", settings={**_TWO_KINDS, "head_dim": 24, **_OLD_ROPE}),
    Base(family="olmo2", settings=_OLD_ROPE),
    Base(
        family="olmo3",
        settings={
            **_TWO_KINDS,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": _YARN,
            },
        },
    ),
    Base(
        family="gpt_oss",
        settings={
            **_FEW,
            "head_dim": 24,
            "intermediate_size": 64,
            **_TWO_KINDS,
            "rope_parameters": {**_YARN, "truncate": False},
        },
    ),
    Base(
        family="glm4_moe",
        settings={
            "head_dim": 24,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "n_shared_experts": 2,
            "routed_scaling_factor": 2.5,
            "use_qk_norm": True,
            "attention_bias": True,
            "n_group": 4,
            "topk_group": 2,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="qwen2_moe",
        settings={
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "shared_expert_intermediate_size": 80,
            "use_sliding_window": True,
            **_TWO_KINDS,
            **_OLD_ROPE,
        },
    ),
    Base(family="mixtral", settings={**_FEW, "sliding_window": 9, **_OLD_ROPE}),
    Base(
        family="minimax_m2",
        settings={**_FEW, "head_dim": 24, "rotary_dim": 16, **_OLD_ROPE},
    ),
    Base(
        family="olmoe",
        settings={
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "num_key_value_heads": 4,
            **_OLD_ROPE,
        },
    ),
    Base(family="granitemoe", settings={**_FEW, **_MULTIPLIERS, **_OLD_ROPE}),
    Base(
        family="granitemoeshared",
        settings={**_FEW, **_MULTIPLIERS, "shared_intermediate_size": 64, **_OLD_ROPE},
    ),
    Base(
        family="lfm2",
        settings={
            "layer_types": ["conv", "full_attention", "conv"],
            "block_multiple_of": 32,
            "tie_word_embeddings": True,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="lfm2_moe",
        settings={
            "layer_types": ["conv", "full_attention", "conv"],
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "num_dense_layers": 1,
            "tie_word_embeddings": True,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="ernie4_5_moe",
        settings={
            "moe_num_experts": 7,
            "moe_k": 3,
            "moe_intermediate_size": 48,
            "intermediate_size": 192,
            **_OLD_ROPE,
        },
    ),
    Base(
        family="qwen3_next",
        settings={
            **_GATED_DELTA,
            **_WITH_SHARED_EXPERT,
            "rope_parameters": {**_THETA, "partial_rotary_factor": 0.25},
        },
    ),
    Base(family="qwen3_5_text", settings={**_GATED_DELTA, **_SECTIONS}),
    Base(
        family="qwen3_5_moe_text",
        settings={**_GATED_DELTA, **_WITH_SHARED_EXPERT, **_SECTIONS},
    ),
    Base(
        family="deepseek_v2",
        settings={
            **_LATENT,
            "q_lora_rank": None,
            "first_k_dense_replace": 1,
            "rope_parameters": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    ),
    Base(
        family="deepseek_v3",
        settings={
            **_LATENT,
            "first_k_dense_replace": 1,
            "n_group": 4,
            "topk_group": 2,
            "rope_parameters": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    Base(family="glm4_moe_lite", settings={**_LATENT, **_OLD_ROPE}),
    Base(
        family="mamba2",
        has_ropes=False,
        settings={
            "num_heads": 8,
            "head_dim": 24,
            "n_groups": 2,
            "state_size": 16,
            "chunk_size": 16,
        },
    ),
    Base(
        family="nemotron_h",
        has_ropes=False,
        settings={
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention"],
            # Without experts these have no effect, but their defaults look like a large model.
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 64,
        },
    ),
    Base(
        name="nemotron_h-experts",
        family="nemotron_h",
        has_ropes=False,
        settings={
            **_NEMOTRON_H,
            "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "moe_shared_expert_intermediate_size": 64,
            "routed_scaling_factor": 2.5,
            "n_group": 4,
            "topk_group": 2,
        },
    ),
    Base(
        family="falcon_h1",
        settings={
            "mamba_d_ssm": 144,
            "mamba_n_heads": 6,
            "mamba_d_state": 16,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 16,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "attention_in_multiplier": 1.3,
            "attention_out_multiplier": 0.9375,
            "embedding_multiplier": 5.65,
            "key_multiplier": 0.39,
            "lm_head_multiplier": 0.7,
            "mlp_multipliers": [0.88, 0.58],
            "ssm_in_multiplier": 1.25,
            "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.3],
            "ssm_out_multiplier": 0.6,
            **_OLD_ROPE,
        },
    ),
)
"""Every family at least once. Ropes turn fast, so that changes of them show within few tokens."""
