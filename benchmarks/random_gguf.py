"""Writes a model with random weights as a GGUF file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from model_shapes import (
    MAX_CONTEXT_TOKENS,
    Experts,
    GatedDelta,
    Latent,
    Shape,
    Tensor,
    gguf_tensors,
)
from random_weights import SEED, random_tensor

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

GGUF_TYPES = (*(fmt.name for fmt in COMPUTED_FORMATS), "Q4_K_M")
_ARCHITECTURES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "glm4_moe_lite": "deepseek2",
    "lfm2": "lfm2",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
}
_ROPE_THETAS = {
    "gemma3_text": 1e6,
    "gpt_oss": 150_000.0,
    "glm4_moe_lite": 1e6,
    "lfm2": 1e6,
    "qwen3_5_text": 1e7,
    "qwen3_5_moe_text": 1e7,
}
_KEPT_IN_F32 = ("ffn_gate_inp", "shortconv.conv", "ssm_conv1d")


def write_gguf(
    shape: Shape, path: Path, type_name: str, max_context_tokens: int = MAX_CONTEXT_TOKENS
) -> None:
    """Write one file, with the formats that llama.cpp's quantizer chooses for a type."""
    demo: dict[str, Any] = json.loads((DEMO_DIRECTORY / "config.json").read_text(encoding="utf-8"))
    vocab_size = shape.vocab_size or demo["vocab_size"]
    writer = gguf.GGUFWriter(path, _ARCHITECTURES[shape.family])
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(max_context_tokens)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    if shape.conv_layers:
        kv_heads = [
            0 if layer in shape.conv_layers else shape.num_key_value_heads
            for layer in range(shape.num_layers)
        ]
        writer.add_head_count_kv(kv_heads)
        writer.add_shortconv_l_cache(shape.kernel)
    else:
        writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    if shape.latent is None:
        writer.add_value_length(shape.head_dim)
        writer.add_rope_dimension_count(shape.rotary_dim or shape.head_dim)
    else:
        _add_latent(writer, shape.latent)
    writer.add_rope_freq_base(_ROPE_THETAS.get(shape.family, demo["rope_theta"]))
    if shape.window is not None:
        writer.add_sliding_window(shape.window)
    if shape.family == "gpt_oss":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_layer_norm_rms_eps(1e-6 if shape.gated_delta else demo["rms_norm_eps"])
    if shape.experts is not None:
        writer.add_expert_count(shape.experts.num_experts)
        writer.add_expert_used_count(shape.experts.num_experts_per_token)
        writer.add_expert_feed_forward_length(shape.experts.intermediate_size)
        if shape.experts.has_shared:
            _add_routing(writer, shape.experts)
        if shape.experts.shared_size is not None:
            writer.add_expert_shared_feed_forward_length(shape.experts.shared_size)
    if shape.gated_delta is not None:
        _add_gated_delta(writer, shape.gated_delta)
    _add_tokenizer(writer, vocab_size, demo)
    formats = {}
    tensors = list(gguf_tensors(shape, vocab_size))
    for tensor in tensors:
        fmt = formats[tensor.name] = stored_format(tensor, type_name, shape)
        num_bytes = math.prod(tensor.dimensions) // fmt.block_elements * fmt.block_bytes
        writer.add_tensor_info(
            tensor.name,
            tensor.dimensions,
            np.dtype(np.float32),
            num_bytes,
            raw_dtype=gguf.GGMLQuantizationType[fmt.name],
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(SEED)
    (file,) = writer.fout
    for tensor in tensors:
        writer.write_padding(file, file.tell())
        fmt = formats[tensor.name]
        for piece in random_tensor(rng, fmt, tensor.dimensions, tensor.value):
            file.write(piece.data)
    writer.write_padding(file, file.tell())
    writer.close()


def _add_latent(writer: gguf.GGUFWriter, latent: Latent) -> None:
    """Write what the converter writes for latent attention, except the sizes of its one key."""
    writer.add_value_length(latent.latent_rank)
    writer.add_key_length_mla(latent.nope_dim + latent.rope_dim)
    writer.add_value_length_mla(latent.value_dim)
    writer.add_q_lora_rank(latent.query_rank)
    writer.add_kv_lora_rank(latent.latent_rank)
    writer.add_rope_dimension_count(latent.rope_dim)


def _add_routing(writer: gguf.GGUFWriter, experts: Experts) -> None:
    """Write the routing parameters of GLM-4.7-Flash."""
    writer.add_leading_dense_block_count(experts.num_dense_layers)
    writer.add_expert_shared_count(1)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_norm(True)
    writer.add_expert_weights_scale(1.8)


def _add_gated_delta(writer: Any, net: GatedDelta) -> None:
    writer.add_ssm_conv_kernel(net.kernel)
    writer.add_ssm_state_size(net.head_dim)
    writer.add_ssm_group_count(net.num_key_heads)
    writer.add_ssm_time_step_rank(net.num_heads)
    writer.add_ssm_inner_size(net.num_heads * net.head_dim)
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_sections([11, 11, 10, 0])


def stored_format(tensor: Tensor, type_name: str, shape: Shape) -> TensorFormat:
    """Return the format of a tensor in a file of a type, as llama.cpp's quantizer chooses it
    (``llama-quant.cpp``).

    Norms, routers and the kernels of convolutions are F32. The head, or the embedding where it is
    the head, is Q6_K in files of any coarser type but Q8_0. In files of MXFP4 (gpt-oss) only
    experts are, and the others Q8_0. In the mixture Q4_K_M the values' and the down projections are
    Q6_K in an eighth of the layers at either end, and in every third between; fused projections of
    queries, keys and values are Q5_K.
    """
    is_vector = len(tensor.dimensions) == 1 or tensor.name.endswith(".bias")
    if is_vector or any(part in tensor.name for part in _KEPT_IN_F32):
        return TensorFormat.F32
    if type_name == "MXFP4" and "_exps" not in tensor.name:
        return TensorFormat.Q8_0
    fmt = TensorFormat["Q4_K" if type_name == "Q4_K_M" else type_name]
    is_head = tensor.name == ("token_embd.weight" if shape.has_tied_head else "output.weight")
    if is_head and fmt.is_quantized and fmt is not TensorFormat.Q8_0:
        return _that_fits(TensorFormat.Q6_K, tensor)
    if type_name == "Q4_K_M" and "attn_qkv" in tensor.name:
        return _that_fits(TensorFormat.Q5_K, tensor)
    if type_name != "Q4_K_M" or not any(part in tensor.name for part in ("attn_v.", "ffn_down")):
        return _that_fits(fmt, tensor)
    layer, count = int(tensor.name.split(".")[1]), shape.num_layers
    is_at_an_end = layer < count // 8 or layer >= 7 * count // 8
    is_third = (layer - count // 8) % 3 == 2
    return _that_fits(TensorFormat.Q6_K if is_at_an_end or is_third else fmt, tensor)


def _that_fits(fmt: TensorFormat, tensor: Tensor) -> TensorFormat:
    """Return ``fmt``, or llama.cpp's replacement for rows that are not whole blocks of it."""
    if tensor.dimensions[-1] % fmt.block_elements == 0:
        return fmt
    fallbacks = {
        TensorFormat.Q6_K: TensorFormat.Q8_0,
        TensorFormat.Q5_K: TensorFormat.Q5_1,
        TensorFormat.Q4_K: TensorFormat.Q5_0,
    }
    return fallbacks[fmt]


def _add_tokenizer(writer: Any, vocab_size: int, demo: dict[str, Any]) -> None:
    """Write demo's tokenizer, padded to ``vocab_size`` with unused tokens as real files are."""
    tokenizer = json.loads((DEMO_DIRECTORY / "tokenizer.json").read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"] | {
        each["content"]: each["id"] for each in tokenizer["added_tokens"]
    }
    special = {each["id"] for each in tokenizer["added_tokens"]}
    tokens = sorted(ids, key=ids.__getitem__)
    control, normal, unused = (
        gguf.TokenType.CONTROL,
        gguf.TokenType.NORMAL,
        gguf.TokenType.UNUSED,
    )
    types = [control if index in special else normal for index in range(len(tokens))]
    filled = range(len(tokens), vocab_size)
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *(f"[PAD{index}]" for index in filled)])
    writer.add_token_types([*types, *(unused for _ in filled)])
    writer.add_token_merges(
        [each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]]
    )
    writer.add_bos_token_id(demo["bos_token_id"])
    writer.add_eos_token_id(demo["eos_token_id"])
