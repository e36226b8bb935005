"""What ``config.json`` says in published Gemma models, as far as it concerns the arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GEMMA_2_2B: Mapping[str, Any] = {
    "architectures": ["Gemma2ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 107],
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "max_position_embeddings": 8192,
    "model_type": "gemma2",
    "num_attention_heads": 8,
    "num_hidden_layers": 26,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "vocab_size": 256000,
}
GEMMA_2_27B: Mapping[str, Any] = {
    **GEMMA_2_2B,
    "head_dim": 128,
    "hidden_size": 4608,
    "intermediate_size": 36864,
    "num_attention_heads": 32,
    "num_hidden_layers": 46,
    "num_key_value_heads": 16,
    "query_pre_attn_scalar": 144,
}
GEMMA_3_1B: Mapping[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
GEMMA_3_4B: Mapping[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    # Most is left to the defaults of ``transformers``.
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 1,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
GEMMA_3_27B: Mapping[str, Any] = {
    **GEMMA_3_4B,
    "text_config": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "model_type": "gemma3_text",
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
}


def _layer_types(num_layers: int, period: int) -> list[str]:
    return [
        "full_attention" if (layer + 1) % period == 0 else "sliding_attention"
        for layer in range(num_layers)
    ]


_GEMMA_4_TEXT: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_k_eq_v": True,
    "enable_moe_block": False,
    "final_logit_softcapping": 30.0,
    "global_head_dim": 512,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 262144,
    "model_type": "gemma4_text",
    "moe_intermediate_size": None,
    "num_experts": None,
    "num_kv_shared_layers": 0,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "full_attention": {
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
            "rope_type": "proportional",
        },
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"},
    },
    "sliding_window": 1024,
    "tie_word_embeddings": True,
    "top_k_experts": None,
    "use_bidirectional_attention": "vision",
    "use_double_wide_mlp": False,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
}
_GEMMA_4: Mapping[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "audio_config": None,
    "eos_token_id": [1, 106],
    "model_type": "gemma4",
    "tie_word_embeddings": True,
    "vision_config": None,
}
GEMMA_4_31B: Mapping[str, Any] = {
    **_GEMMA_4,
    "text_config": {
        **_GEMMA_4_TEXT,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "layer_types": _layer_types(60, 6),
        "num_attention_heads": 32,
        "num_global_key_value_heads": 4,
        "num_hidden_layers": 60,
        "num_key_value_heads": 16,
    },
}
GEMMA_4_26B_A4B: Mapping[str, Any] = {
    **_GEMMA_4,
    "text_config": {
        **_GEMMA_4_TEXT,
        "enable_moe_block": True,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "layer_types": _layer_types(30, 6),
        "moe_intermediate_size": 704,
        "num_attention_heads": 16,
        "num_experts": 128,
        "num_global_key_value_heads": 2,
        "num_hidden_layers": 30,
        "num_key_value_heads": 8,
        "top_k_experts": 8,
    },
}
GEMMA_4_E2B: Mapping[str, Any] = {
    **_GEMMA_4,
    "text_config": {
        **_GEMMA_4_TEXT,
        "attention_k_eq_v": False,
        "hidden_size": 1536,
        "hidden_size_per_layer_input": 256,
        "intermediate_size": 6144,
        "layer_types": _layer_types(35, 5),
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_global_key_value_heads": None,
        "num_hidden_layers": 35,
        "num_key_value_heads": 1,
        "num_kv_shared_layers": 20,
        "sliding_window": 512,
        "use_bidirectional_attention": None,
        "use_double_wide_mlp": True,
    },
}
GEMMA_4_E4B: Mapping[str, Any] = {
    **_GEMMA_4,
    "text_config": {
        **GEMMA_4_E2B["text_config"],
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "layer_types": _layer_types(42, 6),
        "num_hidden_layers": 42,
        "num_key_value_heads": 2,
        "num_kv_shared_layers": 18,
        "use_double_wide_mlp": False,
    },
}
# Of the kind that has no tower: its text part has neither experts nor per-layer embeddings.
GEMMA_4_UNIFIED: Mapping[str, Any] = {
    **_GEMMA_4,
    "architectures": ["Gemma4UnifiedForConditionalGeneration"],
    "model_type": "gemma4_unified",
    "text_config": {
        **{
            key: value
            for key, value in _GEMMA_4_TEXT.items()
            if "per_layer" not in key and "expert" not in key and "moe" not in key
        },
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "layer_types": _layer_types(48, 6),
        "model_type": "gemma4_unified_text",
        "num_attention_heads": 16,
        "num_global_key_value_heads": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
    },
}

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "gemma-2-2b": GEMMA_2_2B,
    "gemma-2-27b": GEMMA_2_27B,
    "gemma-3-1b": GEMMA_3_1B,
    "gemma-3-4b": GEMMA_3_4B,
    "gemma-3-27b": GEMMA_3_27B,
    "gemma-4-31B": GEMMA_4_31B,
    "gemma-4-26B-A4B": GEMMA_4_26B_A4B,
    "gemma-4-E2B": GEMMA_4_E2B,
    "gemma-4-E4B": GEMMA_4_E4B,
    "gemma-4-unified": GEMMA_4_UNIFIED,
}
