"""Small random models with experts, as transformers writes them and as llama.cpp's converter does.

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
from support.models.latent_models import LATENT_FAMILIES, add_latent_keys, convert_latent
from support.models.random_models import SMALL, RandomModel

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]


def make_expert_model(
    family: str, settings: Mapping[str, object], directory: Path, *, seed: int = 0
) -> RandomModel:
    """A float32 model of ``family`` (its ``model_type``) with ``settings`` over ``SMALL``.

    Weights are drawn so that logits spread over several units, experts differ clearly, and what a
    router adds to its scores decides between them.
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
        for name, parameter in model.named_parameters():
            values = _draw(generator, name, tuple(parameter.shape), config.model_type)
            parameter.copy_(torch.from_numpy(values))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                values = _draw(generator, name, tuple(buffer.shape), config.model_type)
                buffer.copy_(torch.from_numpy(values))
    model.save_pretrained(directory)
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state=load_file(directory / "model.safetensors"),
        torch_model=model,
    )


def store_experts_in_mxfp4(model: RandomModel) -> None:
    """Write a gpt-oss model's files again as the published ones are, with its experts in MXFP4.

    The model in memory and ``model.state`` have what the rounded experts stand for then.
    """
    import torch
    from safetensors.numpy import save_file

    kind = gguf.GGMLQuantizationType.MXFP4
    parameters = dict(model.torch_model.named_parameters())
    tensors: dict[str, NDArray[Any]] = {}
    for name, values in model.state.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors[name] = values
            continue
        rows = np.ascontiguousarray(values.swapaxes(1, 2))
        stored = gguf.quants.quantize(rows, kind)
        rounded = gguf.quants.dequantize(stored, kind).reshape(rows.shape)
        values[...] = rounded.swapaxes(1, 2)
        with torch.no_grad():
            parameters[name].copy_(torch.from_numpy(values))
        blocks = stored.reshape(*rows.shape[:2], -1, 17)
        codes = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], axis=-1)
        tensors[f"{name}_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        tensors[f"{name}_scales"] = np.ascontiguousarray(blocks[..., 0])
    save_file(tensors, model.directory / "model.safetensors", metadata={"format": "pt"})
    unquantized = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": unquantized}
    path = model.directory / "config.json"
    path.write_text(json.dumps({**model.config, "quantization_config": quantization}))


def add_layer_that_predicts(directory: Path) -> None:
    """Add a layer after the last one to a GLM model's files, as published ones have it."""
    from safetensors.numpy import load_file, save_file

    path = directory / "model.safetensors"
    config = json.loads((directory / "config.json").read_text())
    last, next_layer = config["num_hidden_layers"] - 1, config["num_hidden_layers"]
    tensors = load_file(path)
    added = {
        name.replace(f"layers.{last}.", f"layers.{next_layer}."): values
        for name, values in tensors.items()
        if f"layers.{last}." in name
    }
    added[f"model.layers.{next_layer}.eh_proj.weight"] = np.ones((96, 192), np.float32)
    added[f"model.layers.{next_layer}.enorm.weight"] = np.ones(96, np.float32)
    save_file(tensors | added, path, metadata={"format": "pt"})


def _draw(generator: np.random.Generator, name: str, shape: tuple[int, ...], family: str) -> Floats:
    noise = generator.standard_normal(shape)
    # gpt-oss keeps the matrices of its experts with the inputs' dimension first.
    num_inputs = shape[-2] if family == "gpt_oss" and len(shape) == 3 else shape[-1]
    if name.endswith("e_score_correction_bias"):
        values = 0.2 * noise
    elif name.endswith("sinks"):
        values = 1 + noise
    elif name.endswith(("_bias", ".bias")):
        values = 0.2 * noise
    elif "norm" in name:
        values = 1 + 0.3 * noise
    elif "embed_tokens" in name:
        values = 0.3 * noise
    elif "q_proj" in name or "k_proj" in name:
        values = 1.2 * noise / np.sqrt(num_inputs)
    elif "o_proj" in name or "down_proj" in name or "output_linear" in name:
        values = 5 * noise / np.sqrt(num_inputs)
    elif "lm_head" in name or ("gate_up" in name and family == "gpt_oss"):
        # Large gates, so that some are clamped.
        values = 3 * noise / np.sqrt(num_inputs)
    else:
        values = noise / np.sqrt(num_inputs)
    return values.astype(np.float32)


def write_expert_gguf(
    path: Path,
    model: RandomModel,
    *,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    num_more_layers: int = 0,
    has_joint_up: bool = False,
) -> None:
    """Write ``model`` as the converter does: its keys, its tensors' names, rows and shapes.

    Everything is F32, except tensors whose names hold a key of ``formats``. The last of its layers,
    ``num_more_layers`` of them, are said to predict further tokens. With ``has_joint_up`` files of
    models with latent attention are as the converter made them before April 2025.
    """
    config = model.config
    if config["model_type"] in LATENT_FAMILIES:
        config = {**config, "has_joint_up": has_joint_up, "head_dim": None}
    architecture, metadata, convert = _CONVERSIONS[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    _add_common(writer, config)
    metadata(writer, config)
    if num_more_layers:
        writer.add_nextn_predict_layers(num_more_layers)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["a"])
    architectures = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[architecture], config["num_hidden_layers"] + 1)
    for name, values in convert(_stacked(model.state), config).items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        kinds = [kind for part, kind in (formats or {}).items() if part in found]
        if kinds and values.ndim > 1:
            data = gguf.quants.quantize(values, kinds[0])
            writer.add_tensor(found, data, raw_dtype=kinds[0])
        else:
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_common(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """What ``TextModel.set_gguf_parameters`` of the converter writes for every architecture."""
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    is_absorbed = config.get("has_joint_up") is False
    writer.add_head_count_kv(1 if is_absorbed else config["num_key_value_heads"])
    rope = config["rope_parameters"]
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    for key in ("num_local_experts", "num_experts", "n_routed_experts"):
        if config.get(key) is not None:
            writer.add_expert_count(config[key])
            break
    if config.get("num_experts_per_tok") is not None:
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("n_group") is not None:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])


def _head_dim(config: Mapping[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def _stacked(state: Mapping[str, Floats]) -> Tensors:
    """The tensors, those of a layer's experts stacked under a name without the expert's number."""
    stacks: dict[str, list[Floats]] = {}
    tensors: Tensors = {}
    for name in sorted(state, key=_in_order):
        head, experts, tail = name.partition(".experts.")
        number, _, part = tail.partition(".")
        if experts and number.isdecimal():
            stacks.setdefault(f"{head}.experts.{part}", []).append(state[name])
        else:
            tensors[name] = state[name]
    return tensors | {name: np.stack(values) for name, values in stacks.items()}


def _in_order(name: str) -> tuple[object, ...]:
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")
    )


def _permuted(values: Floats, num_heads: int) -> Floats:
    """``LlamaModel.permute`` of the converter: the halves of every head interleaved."""
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _with_permuted_heads(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    return {
        name: next((_permuted(values, n) for part, n in heads.items() if part in name), values)
        for name, values in tensors.items()
    }


def _gpt_oss(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])


def _convert_gpt_oss(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    converted: Tensors = {}
    for name, values in tensors.items():
        if name.endswith("sinks"):
            converted[f"{name}.weight"] = values
        elif name.endswith("gate_up_proj_bias"):
            stem = name.removesuffix("gate_up_proj_bias")
            converted[f"{stem}gate_proj.bias"] = values[..., ::2]
            converted[f"{stem}up_proj.bias"] = values[..., 1::2]
        elif name.endswith("gate_up_proj"):
            stem, rows = name.removesuffix("gate_up_proj"), values.swapaxes(1, 2)
            converted[f"{stem}gate_proj.weight"] = rows[:, ::2]
            converted[f"{stem}up_proj.weight"] = rows[:, 1::2]
        elif name.endswith("down_proj_bias"):
            converted[f"{name.removesuffix('_bias')}.bias"] = values
        elif name.endswith("down_proj"):
            converted[f"{name}.weight"] = values.swapaxes(1, 2)
        else:
            converted[name] = values
    return {name: np.ascontiguousarray(values) for name, values in converted.items()}


def _glm4_moe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    share = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(_head_dim(config) * share))
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])


def _as_it_is(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    return tensors


def _convert_correction(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """``e_score_correction_bias`` is called ``e_score_correction.bias`` (and has one dimension)."""
    return {
        name.replace("e_score_correction_bias", "e_score_correction.bias"): (
            values.reshape(-1) if "e_score_correction_bias" in name else values
        )
        for name, values in tensors.items()
    }


def _qwen2_moe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _mixtral(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_dimension_count(_head_dim(config))


def _convert_mixtral(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    return {
        name.replace("model.layers", "layers").replace("block_sparse_moe", "feed_forward")
        if ".experts." in name
        else name: values
        for name, values in _with_permuted_heads(tensors, config).items()
    }


def _minimax_m2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_rope_dimension_count(config["rotary_dim"])


def _olmoe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_layer_norm_rms_eps(1e-5)


def _granite_moe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])
    if config.get("shared_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])


def _convert_granite_moe(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    converted: Tensors = {}
    for name, values in _with_permuted_heads(tensors, config).items():
        stem, part, _ = name.partition("input_linear.weight")
        if not part:
            converted[name] = values
            continue
        layer = name.split(".")[2]
        gate, up = np.split(values, 2, axis=-2)
        kind = "shexp" if "shared_mlp" in stem else "exps"
        converted[f"blk.{layer}.ffn_gate_{kind}.weight"] = gate
        converted[f"blk.{layer}.ffn_up_{kind}.weight"] = up
    return {name: np.ascontiguousarray(values) for name, values in converted.items()}


def _ernie4_5_moe(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(config["moe_num_experts"])
    writer.add_expert_used_count(config["moe_k"])
    writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
    writer.add_leading_dense_block_count(config["moe_layer_start_index"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["moe_num_shared_experts"])
    if config["moe_num_shared_experts"]:
        width = config["intermediate_size"] // config["num_key_value_heads"]
        writer.add_expert_shared_feed_forward_length(width)


def _convert_latent(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    return convert_latent(_convert_correction(tensors, config), config)


_Metadata = Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]
_Convert = Callable[[Tensors, Mapping[str, Any]], Tensors]
_CONVERSIONS: Mapping[str, tuple[str, _Metadata, _Convert]] = {
    "gpt_oss": ("gpt-oss", _gpt_oss, _convert_gpt_oss),
    "glm4_moe": ("glm4moe", _glm4_moe, _convert_correction),
    "qwen2_moe": ("qwen2moe", _qwen2_moe, _as_it_is),
    "mixtral": ("llama", _mixtral, _convert_mixtral),
    "minimax_m2": ("minimax-m2", _minimax_m2, _convert_correction),
    "olmoe": ("olmoe", _olmoe, _as_it_is),
    "granitemoe": ("granitemoe", _granite_moe, _convert_granite_moe),
    "granitemoeshared": ("granitemoe", _granite_moe, _convert_granite_moe),
    "ernie4_5_moe": ("ernie4_5-moe", _ernie4_5_moe, _convert_correction),
    **dict.fromkeys(LATENT_FAMILIES, ("deepseek2", add_latent_keys, _convert_latent)),
}
