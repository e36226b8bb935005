"""Small random models of Mamba-2, Nemotron-H and Falcon-H1, and their GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.hybrid_models import make_hybrid_model, mamba_tensors
from support.models.random_models import RandomModel

Floats = NDArray[np.float32]
Tensors = dict[str, Floats]


def make_mamba_model(
    family: str, settings: Mapping[str, object], directory: Path, *, seed: int = 0
) -> RandomModel:
    """As ``make_hybrid_model``, with steps bounded by ``time_step_limit`` in every family."""
    model = make_hybrid_model(family, settings, directory, seed=seed)
    bound_steps(model.torch_model)
    return model


def bound_steps(torch_model: Any) -> None:
    """Let a Nemotron-H model of transformers bound its steps by ``time_step_limit``.

    It bounds them by ``time_step_min``, but not when it decodes, which
    https://github.com/huggingface/transformers/pull/48989 says is an error.
    """
    for module in torch_model.modules():
        if type(module).__name__ == "NemotronHMamba2Mixer":
            module.time_step_limit = torch_model.config.time_step_limit


def write_mamba_gguf(
    path: Path,
    model: RandomModel,
    *,
    formats: Mapping[str, gguf.GGMLQuantizationType] | None = None,
    are_rounded_only: bool = False,
) -> None:
    """Write ``model`` as llama.cpp's converter does: its keys, its tensors' names and shapes.

    Everything is F32, except matrices of whole blocks of 32 whose names hold a key of ``formats``;
    and these too, if they ``are_rounded_only`` to what the formats can say.
    """
    config = model.config
    architecture, metadata, convert = _CONVERSIONS[config["model_type"]]
    if config["model_type"] == "nemotron_h" and "moe" in config["layers_block_type"]:
        architecture = "nemotron_h_moe"
    writer = gguf.GGUFWriter(path, architecture)
    metadata(writer, config)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_array("tokenizer.ggml.tokens", ["a"])
    architectures = {text: number for number, text in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(architectures[architecture], _num_layers(config))
    for name, values in convert(dict(model.state), config).items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        kinds = [kind for part, kind in (formats or {}).items() if part in found]
        if kinds and values.ndim > 1 and values.shape[-1] % 32 == 0:
            data = gguf.quants.quantize(np.ascontiguousarray(values), kinds[0])
            if are_rounded_only:
                rounded = gguf.quants.dequantize(data, kinds[0])
                writer.add_tensor(found, rounded.reshape(values.shape))
            else:
                writer.add_tensor(found, data, raw_dtype=kinds[0])
        else:
            writer.add_tensor(found, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _num_layers(config: Mapping[str, Any]) -> int:
    return len(config.get("layers_block_type") or ()) or int(config["num_hidden_layers"])


def _add_mixer(
    writer: gguf.GGUFWriter, *, kernel: int, inner: int, state: int, heads: int, groups: int
) -> None:
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def _mamba2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(2**20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_block_count(config["num_hidden_layers"])
    _add_mixer(
        writer,
        kernel=config["conv_kernel"],
        inner=config["expand"] * config["hidden_size"],
        state=config["state_size"],
        heads=config["num_heads"],
        groups=config["n_groups"],
    )
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])


def _convert_mamba2(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    converted: Tensors = {}
    for name, values in tensors.items():
        if ".mixer." in name:
            converted |= mamba_tensors(name, values, config["n_groups"])
        else:
            converted[name] = values
    return converted


def _nemotron_h(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    """``NemotronHModel``, over those of Granite's hybrid models and of Llama."""
    kinds = config["layers_block_type"]
    writer.add_block_count(len(kinds))
    writer.add_context_length(2**20)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_scaling_finetuned(False)
    _add_mixer(
        writer,
        kernel=config["conv_kernel"],
        inner=config["mamba_num_heads"] * config["mamba_head_dim"],
        state=config["ssm_state_size"],
        heads=config["mamba_num_heads"],
        groups=config["n_groups"],
    )
    writer.add_head_count_kv(
        [config["num_key_value_heads"] if kind == "full_attention" else 0 for kind in kinds]
    )
    if "moe" not in kinds:
        width = config["intermediate_size"]
        writer.add_feed_forward_length([width if kind == "mlp" else 0 for kind in kinds])
        return
    width = config["moe_intermediate_size"]
    writer.add_feed_forward_length([width if kind == "moe" else 0 for kind in kinds])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(width)
    writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
    writer.add_expert_count(config["n_routed_experts"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if config["moe_latent_size"] is not None:
        writer.add_moe_latent_size(config["moe_latent_size"])


def _convert_nemotron_h(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    converted: Tensors = {}
    experts: dict[str, list[Floats]] = {}
    for name in sorted(tensors, key=_in_order):
        values, (stem, _, part) = tensors[name], name.partition(".experts.")
        if part:
            layer, matrix = stem.split(".")[2], part.split(".", 1)[1]
            stacked = f"model.layers.{layer}.mlp.experts.{matrix}"
            experts.setdefault(stacked, []).append(values)
        elif any(each in name for each in ("conv1d", "A_log", ".D", "dt_bias", "mixer.norm")):
            converted |= mamba_tensors(name, values, config["n_groups"])
        else:
            converted[name.replace("e_score_correction_bias", "e_score_correction.bias")] = values
    return converted | {name: np.stack(values) for name, values in experts.items()}


def _in_order(name: str) -> tuple[object, ...]:
    return tuple(
        (0, int(part), "") if part.isdecimal() else (1, 0, part) for part in name.split(".")
    )


def _falcon_h1(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_embedding_length(config["hidden_size"])
    _add_mixer(
        writer,
        kernel=config["mamba_d_conv"],
        inner=config["mamba_d_ssm"],
        state=config["mamba_d_state"],
        heads=config["mamba_n_heads"],
        groups=config["mamba_n_groups"],
    )
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])


def _convert_falcon_h1(tensors: Tensors, config: Mapping[str, Any]) -> Tensors:
    """``FalconH1Model.modify_tensors`` of the converter, which multiplies matrices."""
    gate, down = config["mlp_multipliers"]
    attention_in = config["attention_in_multiplier"]
    factors = {
        "down_proj": down,
        "gate_proj": gate,
        "k_proj": config["key_multiplier"] * attention_in,
        "q_proj": attention_in,
        "v_proj": attention_in,
        "o_proj": config["attention_out_multiplier"],
        "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"],
        "embed_tokens": config["embedding_multiplier"],
    }
    inner, heads = config["mamba_d_ssm"], config["mamba_n_heads"]
    vectors = config["mamba_n_groups"] * config["mamba_d_state"]
    rows = np.repeat(config["ssm_multipliers"], [inner, inner, vectors, vectors, heads])
    converted: Tensors = {}
    for name, values in tensors.items():
        factor = next((each for part, each in factors.items() if part in name), None)
        if factor is not None:
            converted[name] = (values * factor).astype(np.float32)
        elif "in_proj" in name:
            scaled = values * config["ssm_in_multiplier"] * rows[:, None]
            converted[name] = scaled.astype(np.float32)
        elif ".mamba." in name:
            converted |= mamba_tensors(name, values, config["mamba_n_groups"])
        else:
            converted[name] = values
    return converted


_Metadata = Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]
_Convert = Callable[[Tensors, Mapping[str, Any]], Tensors]
_CONVERSIONS: Mapping[str, tuple[str, _Metadata, _Convert]] = {
    "mamba2": ("mamba2", _mamba2, _convert_mamba2),
    "nemotron_h": ("nemotron_h", _nemotron_h, _convert_nemotron_h),
    "falcon_h1": ("falcon-h1", _falcon_h1, _convert_falcon_h1),
}
