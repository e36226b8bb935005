"""What ``config.json`` of published models with recurrent layers says about their arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LFM2_1_2B: Mapping[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_dim": 2048,
    "block_ff_dim": 12_288,
    "block_ffn_dim_multiplier": 1.0,
    "block_mlp_init_scale": 1.0,
    "block_multiple_of": 256,
    "block_norm_eps": 1e-05,
    "block_use_swiglu": True,
    "conv_L_cache": 3,
    "conv_bias": False,
    "conv_dim": 2048,
    "conv_dim_out": 2048,
    "eos_token_id": 7,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "hidden_size": 2048,
    "max_position_embeddings": 128_000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "theta": 1_000_000.0,
    "use_pos_enc": True,
    "vocab_size": 65_536,
}
"""Of the first files; LFM2-350M and 700M differ in sizes only."""

LFM2_5_1_2B: Mapping[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "block_auto_adjust_ff_dim": True,
    "block_ffn_dim_multiplier": 1.0,
    "block_multiple_of": 256,
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 2048,
    "intermediate_size": 12_288,
    "layer_types": [
        "full_attention" if layer in (2, 5, 8, 10, 12, 14) else "conv" for layer in range(16)
    ],
    "max_position_embeddings": 128_000,
    "model_type": "lfm2",
    "norm_eps": 1e-05,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"},
    "tie_embedding": True,
    "vocab_size": 65_536,
}

LFM2_8B_A1B: Mapping[str, Any] = {
    "architectures": ["Lfm2MoeForCausalLM"],
    "conv_L_cache": 3,
    "conv_bias": False,
    "eos_token_id": 7,
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "layer_types": [
        "full_attention" if layer in (2, 6, 10, 14, 18, 21) else "conv" for layer in range(24)
    ],
    "max_position_embeddings": 128_000,
    "model_type": "lfm2_moe",
    "moe_intermediate_size": 1792,
    "norm_eps": 1e-05,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "rope_theta": 1_000_000.0,
    "routed_scaling_factor": 1.0,
    "use_expert_bias": True,
    "vocab_size": 65_536,
}

_GRANITE_4: Mapping[str, Any] = {
    "architectures": ["GraniteMoeHybridForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "init_method": "mup",
    "mamba_chunk_size": 256,
    "mamba_conv_bias": True,
    "mamba_d_conv": 4,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_proj_bias": False,
    "max_position_embeddings": 131_072,
    "model_type": "granitemoehybrid",
    "normalization_function": "rmsnorm",
    "num_hidden_layers": 40,
    "position_embedding_type": "nope",
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10_000,
    "tie_word_embeddings": True,
    "vocab_size": 100_352,
}

GRANITE_4_H_TINY: Mapping[str, Any] = {
    **_GRANITE_4,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "hidden_size": 1536,
    "intermediate_size": 512,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "logits_scaling": 6,
    "mamba_d_head": 64,
    "mamba_n_heads": 48,
    "num_attention_heads": 12,
    "num_experts_per_tok": 6,
    "num_key_value_heads": 4,
    "num_local_experts": 64,
    "residual_multiplier": 0.22,
    "shared_intermediate_size": 1024,
}

GRANITE_4_H_1B: Mapping[str, Any] = {
    **_GRANITE_4,
    "attention_multiplier": 0.0078125,
    "embedding_multiplier": 12,
    "hidden_size": 1536,
    "intermediate_size": 4096,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "logits_scaling": 6,
    "mamba_d_head": 64,
    "mamba_n_heads": 48,
    "num_attention_heads": 12,
    "num_experts_per_tok": 0,
    "num_key_value_heads": 4,
    "num_local_experts": 0,
    "residual_multiplier": 0.22,
    "shared_intermediate_size": 4096,
}
