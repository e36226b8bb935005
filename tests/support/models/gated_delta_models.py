"""Small random models of Qwen3-Next's layers, and their GGUF files as llama.cpp's converter writes
them (``conversion/qwen.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import SMALL, RandomModel

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]

_VISION: Mapping[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 96,
    "patch_size": 4,
    "num_position_embeddings": 16,
}


def make_gated_delta_model(
    family: str,
    settings: Mapping[str, object],
    directory: Path,
    *,
    seed: int = 0,
    sees: bool = False,
) -> RandomModel:
    """A float32 model of ``family`` (its ``model_type``) with ``settings`` over ``SMALL``.

    Some of its heads forget within a few tokens, and others in hundreds. ``sees``: it is the text
    part of a model with a vision tower, which has the ``family`` without ``_text``.
    """
    import torch
    from safetensors.numpy import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.set_num_threads(1)
    text = {**SMALL, "pad_token_id": None, "eos_token_id": None, **settings}
    if sees:
        tied = bool(text["tie_word_embeddings"])
        config = AutoConfig.for_model(
            family.removesuffix("_text"),
            text_config=text,
            vision_config=_VISION,
            tie_word_embeddings=tied,
        )
        kind = AutoModelForImageTextToText
    else:
        config, kind = AutoConfig.for_model(family, **text), AutoModelForCausalLM
    model = kind.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(_draw(generator, name, tuple(parameter.shape))))
    model.save_pretrained(directory)
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state=load_file(directory / "model.safetensors"),
        torch_model=model,
    )


def _draw(generator: np.random.Generator, name: str, shape: tuple[int, ...]) -> Floats:
    noise = generator.standard_normal(shape)
    if name.endswith("A_log"):
        values = np.log(generator.uniform(0.001, 0.3, shape))
    elif name.endswith("dt_bias"):
        values = 1 + noise
    elif name.endswith("linear_attn.norm.weight"):
        values = 1 + 0.3 * noise
    elif "norm" in name:
        values = 0.3 * noise
    elif name.endswith("bias"):
        values = 0.2 * noise
    elif "embed_tokens" in name:
        values = 0.3 * noise
    elif "o_proj" in name or "down_proj" in name or "out_proj" in name or "lm_head" in name:
        values = 1.5 * noise / np.sqrt(shape[-1])
    else:
        values = noise / np.sqrt(shape[-1])
    return values.astype(np.float32)


def write_gated_delta_gguf(
    path: Path,
    model: RandomModel,
    *,
    is_legacy: bool = False,
    fuses_experts: bool = False,
    predicts: bool = False,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
) -> None:
    """Write the text part of ``model`` as the converter does, in F32.

    ``is_legacy``: as its first versions wrote Qwen3-Next. ``fuses_experts``: as with
    ``--fuse-gate-up-exps``. ``predicts``: with a block after the last one that predicts a further
    token. Tensors whose names hold a key of ``formats`` are of that format.
    """
    config = model.config.get("text_config", model.config)
    family = config["model_type"]
    architecture = {
        "qwen3_next": "qwen3next",
        "qwen3_5_text": "qwen35",
        "qwen3_5_moe_text": "qwen35moe",
    }[family]
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, config, num_more=int(predicts))
    tensors = _converted(_text_tensors(model.state), config, is_legacy=is_legacy)
    if predicts:
        last, new = config["num_hidden_layers"] - 1, config["num_hidden_layers"]
        block = {
            name.replace(f".{last}.", f".{new}."): values
            for name, values in tensors.items()
            if f"layers.{last}." in name or f"blk.{last}." in name
        }
        hidden = config["hidden_size"]
        block[f"blk.{new}.nextn.eh_proj.weight"] = np.ones((hidden, 2 * hidden), np.float32)
        block[f"blk.{new}.nextn.enorm.weight"] = np.ones(hidden, np.float32)
        tensors |= block
    number = next(n for n, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"] + 1)
    found: Tensors = {}
    for name, values in tensors.items():
        if name.startswith("blk."):
            found[name] = values
            continue
        its_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert its_name is not None, name
        found[its_name] = values
    if fuses_experts:
        for name in [name for name in found if "ffn_gate_exps" in name]:
            up = found.pop(name.replace("gate", "up"))
            fused = np.concatenate([found.pop(name), up], axis=1)
            found[name.replace("gate_exps", "gate_up_exps")] = fused
    for name, values in found.items():
        kinds = [kind for part, kind in (formats or {}).items() if part in name]
        if kinds and values.ndim > 1:
            data = gguf.quants.quantize(values, kinds[0])
            writer.add_tensor(name, data, raw_dtype=kinds[0])
        else:
            writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any], *, num_more: int) -> None:
    num_layers = config["num_hidden_layers"]
    writer.add_block_count(num_layers + num_more)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if config["model_type"] != "qwen3_5_moe_text":
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    rope = config["rope_parameters"]
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    elif config["model_type"] != "qwen3_next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("num_experts"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent + [False] * num_more)
    writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    share = rope.get("partial_rotary_factor", 0.25)
    writer.add_rope_dimension_count(int(config["head_dim"] * share))
    if num_more:
        writer.add_nextn_predict_layers(num_more)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["a"])


def _text_tensors(state: Mapping[str, Floats]) -> Tensors:
    """The tensors without prefixes of models that see, and experts stacked."""
    tensors: Tensors = {}
    stacks: dict[str, dict[int, Floats]] = {}
    for name, values in state.items():
        if ".visual." in name:
            continue
        plain = name.replace("language_model.", "")
        head, experts, tail = plain.partition(".experts.")
        number, _, part = tail.partition(".")
        if experts and number.isdecimal():
            stacks.setdefault(f"{head}.experts.{part}", {})[int(number)] = values
        else:
            tensors[plain] = values
    return tensors | {
        name: np.stack([stack[index] for index in sorted(stack)]) for name, stack in stacks.items()
    }


def _converted(tensors: Tensors, config: Mapping[str, Any], *, is_legacy: bool) -> Tensors:
    """What ``modify_tensors`` of the converter makes of the tensors."""
    is_tiled = config["model_type"] != "qwen3_next"
    num_keys, num_heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    served = num_heads // num_keys
    qk_rows = 2 * num_keys * key_dim

    def tiled(values: Floats, size: int, axis: int = 0) -> Floats:
        """``_reorder_v_heads``."""
        if not is_tiled:
            return values
        turned = np.moveaxis(values, axis, 0)
        heads = turned.reshape(num_keys, served, size, *turned.shape[1:]).swapaxes(0, 1)
        made: Floats = np.moveaxis(heads.reshape(turned.shape), 0, axis)
        return made

    def tiled_values(values: Floats) -> Floats:
        return np.concatenate([values[:qk_rows], tiled(values[qk_rows:], value_dim)])

    made: Tensors = {}
    for name, values in tensors.items():
        if name.endswith("in_proj_qkv.weight"):
            values = tiled_values(values)
        elif name.endswith("in_proj_z.weight"):
            values = tiled(values, value_dim)
        elif name.endswith(("in_proj_a.weight", "in_proj_b.weight")):
            values = tiled(values, 1)
        elif name.endswith("A_log"):
            values = -np.exp(tiled(values, 1))
        elif name.endswith("dt_bias"):
            name, values = name.replace("dt_bias", "dt_proj.bias"), tiled(values, 1)
        elif "conv1d" in name:
            values = tiled_values(values.squeeze(1))
        elif name.endswith("linear_attn.out_proj.weight"):
            values = tiled(values, value_dim, axis=1)
        elif name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        elif name.endswith("in_proj_qkvz.weight") and not is_legacy:
            layer = name.split(".")[2]
            parts = [key_dim, 2 * key_dim, 2 * key_dim + served * value_dim]
            groups = np.split(values.reshape(num_keys, -1, values.shape[-1]), parts, axis=1)
            q, k, v, z = (each.reshape(-1, values.shape[-1]) for each in groups)
            made[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([q, k, v])
            made[f"blk.{layer}.attn_gate.weight"] = z
            continue
        elif name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            made[f"{stem}gate_proj.weight"], made[f"{stem}up_proj.weight"] = (
                np.ascontiguousarray(each) for each in np.split(values, 2, axis=1)
            )
            continue
        elif name.endswith("experts.down_proj"):
            name = f"{name}.weight"
        made[name] = values
    return made
