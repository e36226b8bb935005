"""Random Gemma models, and GGUF files of them with llama.cpp's names, metadata and values.

``conversion/gemma.py`` of llama.cpp is what the files follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import RandomModel

from potluck.types.tensor import TensorFormat

Floats = NDArray[np.float32]

SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 256,
}
"""Settings of the text part: as in ``random_models`` no powers of two."""

_VISION: Mapping[str, Mapping[str, Any]] = {
    "gemma3": {
        "mm_tokens_per_image": 4,
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
        },
    },
    "gemma4": {
        "audio_config": None,
        "vision_config": {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "position_embedding_size": 10,
        },
    },
    "gemma4_unified": {
        "audio_config": None,
        "vision_config": {"mm_embed_dim": 96, "mm_posemb_size": 4, "output_proj_dims": 96},
    },
}

_PLAIN_NAMES = re.compile(
    r"(?:model\.language_model\.|language_model\.model\.|language_model\.|model\.)?(.+)"
)
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_SPECIAL_NAMES = {
    "layer_scalar": "layer_output_scale.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}


def make_gemma(
    family: str,
    settings: Mapping[str, Any],
    directory: Path,
    *,
    wrapper: str | None = None,
    dtype: str = "float32",
    seed: int = 0,
    is_aimed: bool = False,
) -> RandomModel:
    """A model of ``family`` (the ``model_type`` of the text part) with ``settings`` over ``SIZES``.

    With ``wrapper``, the ``model_type`` of models that also see, it is the text part of one.
    ``state`` is what the files hold, in which the model in memory computes in float32. With
    ``is_aimed`` the model has a head of its own, and embeddings are turned to the head's row of
    another token, which is then the likeliest (as ``aim_embedding`` does).
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    torch.set_num_threads(1)
    torch_dtype = getattr(torch, dtype)
    values = {**SIZES, **settings, **({"tie_word_embeddings": False} if is_aimed else {})}
    maker: Any = AutoModelForCausalLM
    if wrapper is None:
        config = AutoConfig.for_model(family, **values)
    else:
        tied = {"tie_word_embeddings": not is_aimed}
        config = AutoConfig.for_model(wrapper, text_config=values, **_VISION[wrapper], **tied)
        maker = AutoModelForImageTextToText
    model = maker.from_config(config, dtype=torch_dtype, attn_implementation="eager").eval()
    generator = np.random.default_rng(seed)
    buffers = [each for each in model.named_buffers() if each[0].endswith("layer_scalar")]
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *buffers):
            drawn = _draw(generator, name, tuple(tensor.shape), is_shifted=_is_shifted(family))
            tensor.copy_(torch.from_numpy(drawn).to(torch_dtype))
        if is_aimed:
            head = model.lm_head.weight.float().numpy()
            order = generator.permutation(len(head))
            following = np.empty_like(order)
            following[order] = np.roll(order, -1)
            unit = head[following] / np.linalg.norm(head[following], axis=1, keepdims=True)
            model.get_input_embeddings().weight += torch.from_numpy(5 * unit).to(torch_dtype)
    model.save_pretrained(directory)
    model.float()
    for module in model.modules():
        if hasattr(module, "scalar_embed_scale"):  # which a model in bf16 has rounded
            module.embed_scale = torch.tensor(module.scalar_embed_scale)
    state = {
        name: tensor.float().numpy()
        for file in sorted(directory.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    return RandomModel(
        directory=directory,
        config=json.loads((directory / "config.json").read_text()),
        state=state,
        torch_model=model,
    )


def write_gemma_gguf(
    path: Path,
    model: RandomModel,
    tokenizer: Mapping[str, Any] | None = None,
    *,
    tensor_format: TensorFormat = TensorFormat.F32,
) -> None:
    """Write the text part of ``model``: matrices in ``tensor_format``, vectors in F32.

    The model in memory then has what the file's tensors stand for.
    """
    config = model.config.get("text_config", model.config)
    family = config["model_type"].removesuffix("_text").removesuffix("_unified")
    writer = gguf.GGUFWriter(path, family)
    _add_metadata(writer, family, config)
    for key, value in (tokenizer or {}).items():
        _add_value(writer, key, value)
    decoded: dict[str, Floats] = {}
    for name, values in model.state.items():
        plain = _PLAIN_NAMES.fullmatch(name)
        if plain is None or plain[1].startswith(("vision", "embed_vision", "multi_modal")):
            continue
        stored_name = _gguf_name(plain[1], family, config["num_hidden_layers"])
        is_norm = name.endswith("norm.weight")
        stored = values + np.float32(1) if is_norm and _is_shifted(family) else values
        is_float = stored.ndim == 1 or "ffn_gate_inp" in stored_name
        kind = gguf.GGMLQuantizationType[(TensorFormat.F32 if is_float else tensor_format).name]
        data = gguf.quants.quantize(stored, kind)
        writer.add_tensor(stored_name, data, raw_dtype=kind)
        if not is_float:
            decoded[plain[1]] = gguf.quants.dequantize(data, kind).reshape(values.shape)
    if family == "gemma4":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    _load(model, decoded)


def _load(model: RandomModel, state: Mapping[str, Floats]) -> None:
    """Let the model in memory compute with other weights, whose names have no prefix."""
    import torch

    with torch.no_grad():
        for name, parameter in model.torch_model.named_parameters():
            plain = _PLAIN_NAMES.fullmatch(name)
            if plain is not None and plain[1] in state:
                parameter.copy_(torch.from_numpy(state[plain[1]]))


def _is_shifted(family: str) -> bool:
    """Whether norms are stored without the 1 that is added to them."""
    return not family.startswith("gemma4")


def _add_metadata(writer: gguf.GGUFWriter, family: str, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_sliding_window(config["sliding_window"])
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if family == "gemma4":
        _add_gemma4_metadata(writer, config)
        return
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        return
    # The converter writes none: published models have the pattern that llama.cpp assumes.
    writer.add_sliding_window_pattern(
        [kind == "sliding_attention" for kind in config["layer_types"]]
    )
    full = config["rope_parameters"]["full_attention"]
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    if full["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(full["factor"])


def _add_gemma4_metadata(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    num_layers, num_shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    is_sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    full = config["per_layer_config"][str(is_sliding.index(False))]
    width = config["intermediate_size"]
    writer.add_shared_kv_layers(num_shared)
    writer.add_embedding_length_per_layer_input(config.get("hidden_size_per_layer_input") or 0)
    writer.add_sliding_window_pattern(is_sliding)
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(full["head_dim"])
    for add in (
        writer.add_key_length_swa,
        writer.add_value_length_swa,
        writer.add_rope_dimension_count_swa,
    ):
        add(config["head_dim"])
    ropes = config["rope_parameters"]
    writer.add_rope_freq_base(ropes["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(ropes["sliding_attention"]["rope_theta"])
    writer.add_feed_forward_length(
        [width] * (num_layers - num_shared) + [2 * width] * num_shared
        if config["use_double_wide_mlp"]
        else width
    )
    num_kv_heads = config["num_key_value_heads"]
    if "num_key_value_heads" in full:
        writer.add_head_count_kv(
            [num_kv_heads if slides else full["num_key_value_heads"] for slides in is_sliding]
        )
    else:
        writer.add_head_count_kv(num_kv_heads)
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _rope_factors(config: Mapping[str, Any]) -> Floats:
    """1 for the pairs of a full layer that turn, so much for the others that they stay."""
    first_full = config["layer_types"].index("full_attention")
    head_dim = config["per_layer_config"][str(first_full)]["head_dim"]
    share = config["rope_parameters"]["full_attention"]["partial_rotary_factor"]
    num_turning = int(head_dim * share / 2)
    return np.array([1.0] * num_turning + [1e30] * (head_dim // 2 - num_turning), np.float32)


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    else:
        writer.add_array(key, value)


def _gguf_name(name: str, family: str, num_layers: int) -> str:
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in _SPECIAL_NAMES:
        return f"blk.{layer[1]}.{_SPECIAL_NAMES[layer[2]]}"
    if name == "lm_head.weight":
        return "output.weight"
    number = next(each for each, text in gguf.MODEL_ARCH_NAMES.items() if text == family)
    names = gguf.get_tensor_name_map(number, num_layers)
    found = names.get_name(f"model.{name}", try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)


def _draw(
    generator: np.random.Generator, name: str, shape: tuple[int, ...], *, is_shifted: bool
) -> Floats:
    """Weights with which logits spread, so that likeliest tokens are decided."""
    noise = generator.standard_normal(shape)
    if not is_shifted and name.endswith(("q_norm.weight", "k_norm.weight")):
        values = 0.5 + 0.15 * noise  # without a scale, more would let one position take all
    elif "norm" in name:
        values = 0.3 * noise + (0 if is_shifted else 1)
    elif name.endswith(("layer_scalar", "per_expert_scale", "router.scale")):
        values = 1 + 0.2 * noise
    elif "embed_tokens" in name:
        values = 0.03 * noise  # the head is the same: texts would repeat themselves
    elif "router" in name:
        values = 2 * noise  # of a normed vector divided by the root of its length
    elif name.endswith(".bias"):
        values = 0.2 * noise
    else:
        values = 1.2 * noise / np.sqrt(shape[-1])
    return np.asarray(values, dtype=np.float32)
