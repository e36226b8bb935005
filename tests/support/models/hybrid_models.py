"""Small random models with recurrent layers, as transformers writes them, and as GGUF files.

``RandomModel.state`` has the tensors of the files, under the names that published files have.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import SMALL, RandomModel

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]


def make_hybrid_model(
    family: str, settings: Mapping[str, object], directory: Path, *, seed: int = 0
) -> RandomModel:
    """A float32 model of ``family`` (its ``model_type``) with ``settings`` over ``SMALL``.

    Weights are drawn so that logits spread over several units, and that states both remember and
    forget: the decays of a token lie between nearly 0 and nearly 1.
    """
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(1)
    config = AutoConfig.for_model(family, **{**SMALL, "pad_token_id": None, **settings})
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in _drawn(model):
            parameter.copy_(torch.from_numpy(_draw(generator, name, tuple(parameter.shape))))
    model.save_pretrained(directory)
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state=load_file(directory / "model.safetensors"),
        torch_model=model,
    )


def _drawn(model: Any) -> list[tuple[str, Any]]:
    endings = ("expert_bias", "e_score_correction_bias")
    buffers = [(name, each) for name, each in model.named_buffers() if name.endswith(endings)]
    return [*model.named_parameters(), *buffers]


_OUTPUTS = ("o_proj", "out_proj", "down_proj", "output_linear", ".w2.")


def _draw(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    noise = generator.standard_normal(shape)
    if name.endswith(".D"):
        values = 1 + 0.5 * noise
    elif name.endswith(("A_log", "dt_bias")):
        values = noise - 1
    elif name.endswith(("_bias", ".bias")):
        values = 0.2 * noise
    elif "norm" in name:
        values = 1 + 0.3 * noise
    elif "embed" in name:
        values = 0.3 * noise
    elif "q_proj" in name or "k_proj" in name:
        values = 1.2 * noise / np.sqrt(shape[-1])
    elif any(each in name for each in _OUTPUTS):
        values = 5 * noise / np.sqrt(shape[-1])
    elif "lm_head" in name:
        values = 2 * noise / np.sqrt(shape[-1])
    else:
        values = noise / np.sqrt(shape[-1])
    return values.astype(np.float32)


def write_hybrid_gguf(
    path: Path,
    model: RandomModel,
    *,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Write ``model`` as llama.cpp's converter does: its keys, its tensors' names and shapes.

    Everything is F32, except tensors whose names hold a key of ``formats``.
    """
    config = model.config
    architecture, metadata, convert = _CONVERSIONS[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(
        [
            config["num_key_value_heads"] if kind == "full_attention" else 0
            for kind in config["layer_types"]
        ]
    )
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_vocab_size(config["vocab_size"])
    metadata(writer, config)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["a"])
    architectures = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[architecture], config["num_hidden_layers"])
    for name, values in convert(dict(model.state), config).items():
        found = name
        if not name.startswith("blk."):
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
        kinds = [kind for part, kind in (formats or {}).items() if part in found]
        if kinds and values.ndim > 1:
            data = gguf.quants.quantize(np.ascontiguousarray(values), kinds[0])
            writer.add_tensor(found, data, raw_dtype=kinds[0])
        else:
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _lfm2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    width = config["intermediate_size"]
    if config["block_auto_adjust_ff_dim"]:
        width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
        multiple = config["block_multiple_of"]
        width = multiple * ((width + multiple - 1) // multiple)
    writer.add_feed_forward_length(width)


def _lfm2_moe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_shortconv_l_cache(config["conv_L_cache"])
    writer.add_layer_norm_rms_eps(config["norm_eps"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_leading_dense_block_count(config["num_dense_layers"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _convert_lfm2(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    converted: Tensors = {}
    for name, values in tensors.items():
        if "conv.conv" in name:
            values = values.squeeze(1)
        if name.endswith("expert_bias"):
            name = f"{name}.bias"
        converted[name] = values
    for layer in range(config["num_hidden_layers"]):
        for part in ("w1", "w2", "w3"):
            stem = f"layers.{layer}.feed_forward.experts"
            names = [
                f"model.{stem}.{expert}.{part}.weight"
                for expert in range(config.get("num_experts") or 0)
            ]
            if names and names[0] in converted:
                matrices = [converted.pop(each) for each in names]
                converted[f"{stem}.{part}.weight"] = np.stack(matrices)
    return converted


def _granite_hybrid(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(config["mamba_expand"] * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def _convert_granite_hybrid(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    has_experts = config["num_local_experts"] > 0
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    converted: Tensors = {}
    for name, values in tensors.items():
        layer = name.split(".")[2] if ".layers." in name else ""
        number = next((n for part, n in heads.items() if part in name), None)
        if number is not None:
            values = _permuted(values, number)
        if name.endswith("input_linear.weight"):
            kind = "_exps" if "block_sparse_moe" in name else "_shexp" if has_experts else ""
            gate, up = np.split(values, 2, axis=-2)
            converted[f"blk.{layer}.ffn_gate{kind}.weight"] = gate
            converted[f"blk.{layer}.ffn_up{kind}.weight"] = up
        elif name.endswith("shared_mlp.output_linear.weight"):
            kind = "_shexp" if has_experts else ""
            converted[f"blk.{layer}.ffn_down{kind}.weight"] = values
        elif ".mamba." in name:
            converted |= mamba_tensors(name, values, config["mamba_n_groups"])
        else:
            converted[name] = values
    return converted


def mamba_tensors(name: str, values: Floats, num_groups: int) -> Tensors:
    """``Mamba2Model.modify_tensors`` of the converter."""
    if name.endswith("conv1d.weight"):
        values = values.squeeze()
    elif name.endswith(("A_log", ".D")):
        values = values.reshape(-1, 1)
    elif name.endswith("norm.weight"):
        values = values.reshape(num_groups, -1)
    if name.endswith("A_log"):
        values = -np.exp(values)
    return {name.replace(".dt_bias", ".dt_proj.bias"): values}


def _permuted(values: Floats, num_heads: int) -> Floats:
    """``LlamaModel.permute`` of the converter: the halves of every head interleaved."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


_Metadata = Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]
_Convert = Callable[[Tensors, Mapping[str, Any]], Tensors]
_CONVERSIONS: Mapping[str, tuple[str, _Metadata, _Convert]] = {
    "lfm2": ("lfm2", _lfm2, _convert_lfm2),
    "lfm2_moe": ("lfm2moe", _lfm2_moe, _convert_lfm2),
    "granitemoehybrid": ("granitehybrid", _granite_hybrid, _convert_granite_hybrid),
}
