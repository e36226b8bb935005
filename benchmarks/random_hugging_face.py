"""Writes a model with random weights in Hugging Face layout."""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from model_shapes import MAX_CONTEXT_TOKENS, Shape, Tensor, hugging_face_tensors
from random_weights import SEED, random_tensor

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.types.tensor import TensorFormat

FLOAT_TYPES = ("F32", "F16", "BF16")
_MAX_FILE_BYTES = 5 * 10**9
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}


def write_hugging_face(shape: Shape, directory: Path, type_name: str = "BF16") -> None:
    """Write ``config.json``, the tokenizer, and safetensors files of floats, of about 5 GB each."""
    directory.mkdir(parents=True, exist_ok=True)
    config = _config(shape)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in DEMO_DIRECTORY.glob("*.json"):
        if path.name != "config.json":
            shutil.copyfile(path, directory / path.name)
    tensors = list(hugging_face_tensors(shape, config["vocab_size"]))
    fmt = TensorFormat[type_name]
    rng = np.random.default_rng(SEED)
    parts = list(_parts(tensors, fmt))
    if len(parts) == 1:
        _write_safetensors(directory / "model.safetensors", parts[0], rng, fmt)
        return
    weight_map: dict[str, str] = {}
    for index, part in enumerate(parts, start=1):
        name = f"model-{index:05}-of-{len(parts):05}.safetensors"
        weight_map |= {tensor.name: name for tensor in part}
        _write_safetensors(directory / name, part, rng, fmt)
    total = sum(_num_bytes(tensor, fmt) for tensor in tensors)
    index_document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps(index_document, indent=2) + "\n", encoding="utf-8"
    )


def _config(shape: Shape) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(
        (DEMO_DIRECTORY / "config.json").read_text(encoding="utf-8")
    )
    config |= {
        "architectures": [_ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": MAX_CONTEXT_TOKENS,
        "tie_word_embeddings": shape.has_tied_head,
    }
    if shape.family != "llama":
        del config["mlp_bias"]
    if shape.vocab_size is not None:
        config["vocab_size"] = shape.vocab_size
    if shape.experts is not None:
        config |= {
            "num_experts": shape.experts.num_experts,
            "num_experts_per_tok": shape.experts.num_experts_per_token,
            "moe_intermediate_size": shape.experts.intermediate_size,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def _num_bytes(tensor: Tensor, fmt: TensorFormat) -> int:
    return fmt.block_bytes * math.prod(tensor.dimensions)


def _parts(tensors: Sequence[Tensor], fmt: TensorFormat) -> Iterator[list[Tensor]]:
    """Yield groups of tensors that share a file."""
    part: list[Tensor] = []
    size = 0
    for tensor in tensors:
        num_bytes = _num_bytes(tensor, fmt)
        if part and size + num_bytes > _MAX_FILE_BYTES:
            yield part
            part, size = [], 0
        part.append(tensor)
        size += num_bytes
    yield part


def _write_safetensors(
    path: Path, part: Sequence[Tensor], rng: np.random.Generator, fmt: TensorFormat
) -> None:
    header: dict[str, object] = {}
    offset = 0
    for tensor in part:
        end = offset + _num_bytes(tensor, fmt)
        header[tensor.name] = {
            "dtype": fmt.name,
            "shape": tensor.dimensions,
            "data_offsets": (offset, end),
        }
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for tensor in part:
            for piece in random_tensor(rng, fmt, tensor.dimensions):
                file.write(piece.data)
