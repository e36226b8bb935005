"""GGUF files of random models, written with the ``gguf`` package as llama.cpp's converter does."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import RandomModel
from support.models.random_weights import stored_rows

from potluck.types.tensor import TensorFormat

# The package cannot encode these; any bytes with sensible scales are a file's content.
_DRAWN_FORMATS = (TensorFormat.Q4_K, TensorFormat.Q5_K, TensorFormat.Q6_K)

# What GGUF files call those of transformers' model types that they call otherwise.
_ARCHITECTURES = {"mistral": "llama", "qwen3_moe": "qwen3moe"}

_EXPERT = re.compile(r"(.+\.experts\.)(\d+)\.(.+)\.weight")

Floats = NDArray[np.float32]


def write_gguf_model(
    path: Path,
    model: RandomModel,
    tokenizer: Mapping[str, Any],
    *,
    formats: TensorFormat | Mapping[str, TensorFormat],
    split_max_tensors: int = 0,
) -> dict[str, Floats]:
    """Write ``model`` with its matrices in ``formats`` and its vectors in F32.

    With ``split_max_tensors`` it is several files, and ``path`` is what their names begin with.
    ``formats`` may map parts of GGUF names ("attn_q") to formats; the others are F16. Returns what
    the file's tensors stand for, decoded by the ``gguf`` package, under their Hugging Face names.
    """
    config = model.config
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    _add_metadata(writer, architecture, config)
    _add_values(writer, tokenizer)
    stored: dict[str, Floats] = {}
    for names in _together(model.state):
        gguf_name = _gguf_name(_of_all_experts(names[0]), architecture, config["num_hidden_layers"])
        heads = _interleaved_heads(architecture, names[0], config)
        matrices = [model.state[name] for name in names]
        values = matrices[0] if len(names) == 1 else np.stack(matrices)
        tensor_format = _format_of(gguf_name, values, formats)
        data = _encode(gguf_name, _interleave(values, heads), tensor_format)
        writer.add_tensor(gguf_name, data, raw_dtype=gguf.GGMLQuantizationType[tensor_format.name])
        decoded = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[tensor_format.name])
        whole = _split(np.asarray(decoded, np.float32).reshape(values.shape), heads)
        stored |= zip(names, [whole] if len(names) == 1 else whole, strict=True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _together(names: Iterable[str]) -> list[list[str]]:
    """The names, those of a layer's experts together where they are one tensor of the file."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_of_all_experts(name), []).append(name)
    return list(groups.values())


def _of_all_experts(name: str) -> str:
    """The name that llama.cpp's converter gives to the experts of a layer when it joins them."""
    return _EXPERT.sub(r"\1\3.weight", name)


def _add_metadata(writer: gguf.GGUFWriter, architecture: str, config: Mapping[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    if architecture == "qwen3moe":
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture == "llama":
        writer.add_rope_dimension_count(head_dim)


def _add_values(writer: gguf.GGUFWriter, values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_array(key, value)


def _gguf_name(name: str, architecture: str, num_layers: int) -> str:
    number = next(n for n, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(number, num_layers)
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return str(found)


def _interleaved_heads(architecture: str, name: str, config: Mapping[str, Any]) -> int | None:
    """How many heads have their rows interleaved (``LlamaModel.permute`` of llama.cpp), if any."""
    if architecture != "llama":
        return None
    if "q_proj" in name:
        return int(config["num_attention_heads"])
    return int(config["num_key_value_heads"]) if "k_proj" in name else None


def _interleave(values: Floats, heads: int | None) -> Floats:
    """Rows 0, 1, 2, … of a head's two halves, one from each in turn."""
    if heads is None:
        return values
    halves = values.reshape(heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _split(values: Floats, heads: int | None) -> Floats:
    """The inverse of ``_interleave``."""
    if heads is None:
        return values
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _format_of(
    gguf_name: str, values: Floats, formats: TensorFormat | Mapping[str, TensorFormat]
) -> TensorFormat:
    if values.ndim == 1 or "ffn_gate_inp" in gguf_name:  # llama.cpp quantizes no router
        return TensorFormat.F32
    if isinstance(formats, TensorFormat):
        return formats
    return next((f for part, f in formats.items() if part in gguf_name), TensorFormat.F16)


def _encode(name: str, values: Floats, tensor_format: TensorFormat) -> NDArray[Any]:
    if tensor_format not in _DRAWN_FORMATS:
        kind = gguf.GGMLQuantizationType[tensor_format.name]
        encoded: NDArray[Any] = gguf.quants.quantize(values, kind)
        return encoded
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    deviation = float(np.std(values.astype(np.float64)))
    rows = stored_rows(
        rng, tensor_format, math.prod(values.shape[:-1]), values.shape[-1], deviation=deviation
    )
    return rows.reshape(*values.shape[:-1], -1)
