"""Parts of ``config.json`` as published models of Qwen3-Next's layers have them.

Values are those of the model cards and of the files on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

QWEN3_NEXT_80B_A3B: Mapping[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "decoder_sparse_step": 1,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262_144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "output_router_logits": False,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10_000_000,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151_936,
}

_QWEN3_5_TEXT: Mapping[str, Any] = {
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32",
    "max_position_embeddings": 262_144,
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "num_attention_heads": 16,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000,
        "rope_type": "default",
    },
    "vocab_size": 248_320,
}


def _layer_types(num_layers: int) -> list[str]:
    return [
        "full_attention" if (layer + 1) % 4 == 0 else "linear_attention"
        for layer in range(num_layers)
    ]


def _that_sees(family: str, architecture: str, text: Mapping[str, Any]) -> Mapping[str, Any]:
    text = {
        **_QWEN3_5_TEXT,
        "model_type": f"{family}_text",
        "layer_types": _layer_types(text["num_hidden_layers"]),
        **text,
    }
    return {
        "architectures": [architecture],
        "image_token_id": 248_056,
        "model_type": family,
        "text_config": text,
        "tie_word_embeddings": text["tie_word_embeddings"],
        "vision_config": {"depth": 27, "hidden_size": 1152, "model_type": family},
    }


QWEN3_5_0_8B = _that_sees(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    {
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "linear_num_value_heads": 16,
        "num_attention_heads": 8,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
)
QWEN3_5_4B = _that_sees(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    {
        "hidden_size": 2560,
        "intermediate_size": 9216,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
    },
)
QWEN3_8_27B = _that_sees(
    "qwen3_5",
    "Qwen3_5ForConditionalGeneration",
    {
        "hidden_size": 5120,
        "intermediate_size": 17_408,
        "linear_num_value_heads": 48,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
        "output_gate_type": "swish",
        "tie_word_embeddings": False,
    },
)
QWEN3_5_35B_A3B = _that_sees(
    "qwen3_5_moe",
    "Qwen3_5MoeForConditionalGeneration",
    {
        "hidden_size": 2048,
        "moe_intermediate_size": 512,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "router_aux_loss_coef": 0.001,
        "shared_expert_intermediate_size": 512,
        "tie_word_embeddings": False,
    },
)
