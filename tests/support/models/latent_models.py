"""What llama.cpp's converter makes of models with latent attention (``conversion/deepseek.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[np.float32]]

LATENT_FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
"""As ``model_type`` calls them."""


def add_latent_keys(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """Write the keys of ``DeepseekV2Model`` of the converter.

    Of ``scoring_func``, which configurations that transformers writes lack, what the model does.
    """
    rank, rope_dim = config["kv_lora_rank"], config["qk_rope_head_dim"]
    key_dim, value_dim = config["qk_nope_head_dim"] + rope_dim, config["v_head_dim"]
    kinds = config.get("mlp_layer_types")
    writer.add_leading_dense_block_count(
        config["first_k_dense_replace"] if kinds is None else kinds.count("dense")
    )
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(rank)
    if config["has_joint_up"]:
        writer.add_key_length(key_dim)
        writer.add_value_length(value_dim)
    else:
        writer.add_key_length(rank + rope_dim)
        writer.add_value_length(rank)
        writer.add_key_length_mla(key_dim)
        writer.add_value_length_mla(value_dim)
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    is_sigmoid = config["model_type"] != "deepseek_v2"
    if is_sigmoid and config["norm_topk_prob"]:
        writer.add_expert_weights_norm(True)
    writer.add_expert_gating_func(
        gguf.ExpertGatingFuncType.SIGMOID if is_sigmoid else gguf.ExpertGatingFuncType.SOFTMAX
    )
    writer.add_rope_dimension_count(rope_dim)
    if (scale := config["rope_parameters"].get("mscale_all_dim")) is not None:
        writer.add_rope_scaling_yarn_log_mul(0.1 * scale)


def convert_latent(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """Split the matrices from the latent row up to keys and values, and transpose the former."""
    if config["has_joint_up"]:
        return tensors
    nope_dim, num_heads = config["qk_nope_head_dim"], config["num_attention_heads"]
    converted: Tensors = {}
    for name, values in tensors.items():
        if not name.endswith("kv_b_proj.weight"):
            converted[name] = values
            continue
        heads = values.reshape(num_heads, -1, values.shape[-1])
        up = {"k_b_proj": heads[:, :nope_dim].swapaxes(1, 2), "v_b_proj": heads[:, nope_dim:]}
        for part, matrix in up.items():
            converted[name.replace("kv_b_proj", part)] = np.ascontiguousarray(matrix)
    return converted
