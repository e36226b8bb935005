"""GGUF files of random dense models, with llama.cpp's names, metadata and values.

What is written is what ``conversion/*.py`` of llama.cpp writes of the same model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import SMALL, RandomModel, draw

Floats = NDArray[np.float32]
Config = Mapping[str, Any]
Adder = Callable[[gguf.GGUFWriter, Config], None]

_ARCHITECTURES: Mapping[str, str] = {
    "ministral3": "mistral3",
    "granitemoehybrid": "granite",
    "olmo3": "olmo2",
    "hunyuan_v1_dense": "hunyuan-dense",
}
"""By ``model_type``, where they differ."""

_PERMUTED = ("ministral3", "smollm3", "granite", "granitemoehybrid")
"""What llama.cpp's converter turns into pairs of neighbours, as it does Llama."""

_TEXT_PREFIX = "language_model."


def write_converted_gguf(path: Path, model: RandomModel) -> None:
    """Write the text part of ``model`` in F32."""
    config = model.config.get("text_config", model.config)
    family = config["model_type"]
    architecture = _ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture)
    _add_metadata(writer, config)
    if family in _ADDERS:
        _ADDERS[family](writer, config)
    number = next(n for n, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, values in model.state.items():
        if name.startswith(("model.vision", "model.multi_modal", "vision", "multi_modal")):
            continue
        plain = name.replace(_TEXT_PREFIX, "")
        for part, array in _parts(family, plain, values):
            found = names.get_name(part, try_suffixes=(".weight", ".bias"))
            assert found is not None, part
            stored = _permuted(part, array, config) if family in _PERMUTED else array
            writer.add_tensor(found, np.ascontiguousarray(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _parts(family: str, name: str, values: Floats) -> list[tuple[str, Floats]]:
    """What the converter splits: only the MLP of Granite 4."""
    if family != "granitemoehybrid" or "shared_mlp" not in name:
        return [(name, values)]
    stem = name.partition("shared_mlp")[0]
    if "output_linear" in name:
        return [(f"{stem}mlp.down_proj.weight", values)]
    gate, up = np.split(values, 2)
    return [(f"{stem}mlp.gate_proj.weight", gate), (f"{stem}mlp.up_proj.weight", up)]


def _permuted(name: str, values: Floats, config: Config) -> Floats:
    """``LlamaModel.permute``: the halves of each head, row by row in turn."""
    if "q_proj" in name:
        num_heads = config["num_attention_heads"]
    elif "k_proj" in name:
        num_heads = config["num_key_value_heads"]
    else:
        return values
    halves = values.reshape(num_heads, 2, -1, *values.shape[1:])
    permuted: Floats = halves.swapaxes(1, 2).reshape(values.shape)
    return permuted


def _rope(config: Config) -> Config:
    rope: Config = config["rope_parameters"]
    full: Config = rope.get("full_attention", rope)
    return full


def _head_dim(config: Config) -> int:
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def _add_metadata(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    if config["model_type"] != "granitemoehybrid":
        writer.add_head_count_kv(config["num_key_value_heads"])
    rope = _rope(config)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(rope, _head_dim(config)))
    if config["model_type"] != "hunyuan_v1_dense":
        writer.add_rope_freq_base(rope["rope_theta"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config.get("head_dim") is not None:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def _llama3_factors(rope: Config, head_dim: int) -> Floats:
    frequencies = rope["rope_theta"] ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / rope["factor"] + smooth)
    return np.asarray(factors, dtype=np.float32)


def _add_phi3(writer: gguf.GGUFWriter, config: Config) -> None:
    rope = _rope(config)
    original = config["original_max_position_embeddings"]
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_dimension_count(int(rope.get("partial_rotary_factor", 1.0) * _head_dim(config)))
    writer.add_sliding_window(config["sliding_window"] or 0)
    if rope["rope_type"] == "longrope":
        scale = config["max_position_embeddings"] / original
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
        for kind in ("long", "short"):
            factors = np.array(rope[f"{kind}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def _add_llama(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(_head_dim(config))


def _add_ministral3(writer: gguf.GGUFWriter, config: Config) -> None:
    _add_llama(writer, config)
    rope = _rope(config)
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _add_granite(writer: gguf.GGUFWriter, config: Config) -> None:
    _add_llama(writer, config)
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _add_granite4(writer: gguf.GGUFWriter, config: Config) -> None:
    _add_granite(writer, config)
    writer.add_expert_count(0)
    writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
    writer.add_ssm_conv_kernel(config["mamba_d_conv"])
    writer.add_ssm_state_size(config["mamba_d_state"])
    writer.add_ssm_group_count(config["mamba_n_groups"])
    writer.add_ssm_inner_size(2 * config["hidden_size"])
    writer.add_ssm_time_step_rank(config["mamba_n_heads"])
    writer.add_head_count_kv([config["num_key_value_heads"]] * config["num_hidden_layers"])
    writer.add_rope_scaling_finetuned(config["position_embedding_type"] == "rope")


def _add_glm4(writer: gguf.GGUFWriter, config: Config) -> None:
    share = _rope(config)["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(_head_dim(config) * share))


def _add_windows(writer: gguf.GGUFWriter, config: Config) -> None:
    if config["sliding_window"] is not None:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(
            [kind == "sliding_attention" for kind in config["layer_types"]]
        )


def _add_olmo3(writer: gguf.GGUFWriter, config: Config) -> None:
    _add_windows(writer, config)
    sliding = config["rope_parameters"]["sliding_attention"]
    writer.add_rope_freq_base_swa(sliding["rope_theta"])


def _add_cohere2(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_logit_scale(config["logit_scale"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(_head_dim(config))
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)


def _add_hunyuan(writer: gguf.GGUFWriter, config: Config) -> None:
    rope, head_dim = _rope(config), _head_dim(config)
    stretch = rope["alpha"] ** (head_dim / (head_dim - 2)) if "alpha" in rope else 1
    writer.add_rope_freq_base(rope["rope_theta"] * stretch)
    writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    writer.add_rope_scaling_factor(1)
    writer.add_rope_scaling_orig_ctx_len(256 * 1024)


_ADDERS: Mapping[str, Adder] = {
    "phi3": _add_phi3,
    "ministral3": _add_ministral3,
    "smollm3": _add_llama,
    "granite": _add_granite,
    "granitemoehybrid": _add_granite4,
    "glm4": _add_glm4,
    "olmo3": _add_olmo3,
    "exaone4": _add_windows,
    "cohere2": _add_cohere2,
    "hunyuan_v1_dense": _add_hunyuan,
}


_VISION: Mapping[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "image_size": 28,
    "patch_size": 14,
}


def make_model_that_sees(
    text: Mapping[str, Any], directory: Path, *, is_tied: bool, seed: int
) -> RandomModel:
    """A model of ``Mistral3ForConditionalGeneration`` with this ``text_config``.

    ``state`` is what the files hold.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForImageTextToText

    torch.set_num_threads(1)
    config = AutoConfig.for_model(
        "mistral3",
        text_config={**SMALL, "tie_word_embeddings": is_tied, **text},
        vision_config=_VISION,
        tie_word_embeddings=is_tied,
    )
    model = AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = draw(generator, name, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values))
    model.save_pretrained(directory)
    state = load_file(directory / "model.safetensors")
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state={name: tensor.float().numpy() for name, tensor in state.items()},
        torch_model=model,
    )
