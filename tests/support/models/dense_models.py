"""GGUF files of random dense models, with llama.cpp's names and the metadata that are given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from support.models.random_models import RandomModel

Floats = NDArray[np.float32]
Rewrite = Callable[[str, Floats], Mapping[str, Floats]]
"""What a converter makes of a tensor, by its Hugging Face name: tensors of the same names or others
that llama.cpp knows."""


def same(name: str, values: Floats) -> Mapping[str, Floats]:
    """The tensor as it is."""
    return {name: values}


def write_dense_gguf(
    path: Path,
    model: RandomModel,
    architecture: str,
    metadata: Mapping[str, Any],
    *,
    rewrite: Rewrite = same,
) -> None:
    """Write ``model`` in F32. ``metadata`` are keys of the architecture without their prefix, over
    those that converters derive from every configuration.
    """
    config = model.config
    num_layers = config["num_hidden_layers"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "block_count": num_layers,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "vocab_size": config["vocab_size"],
        **metadata,
    }
    if "rms_norm_eps" in config:
        values.setdefault("attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    theta = (config.get("rope_parameters") or {}).get("rope_theta")
    if theta is not None:
        values.setdefault("rope.freq_base", float(theta))
    for key, value in values.items():
        _add(writer, f"{architecture}.{key}", value)
    number = next(n for n, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(number, num_layers)
    for name, tensor in model.state.items():
        for each, data in rewrite(name, tensor).items():
            found = names.get_name(each, try_suffixes=(".weight", ".bias")) or each
            writer.add_tensor(found, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
