"""Makes large models with random weights, in the shapes of models that people run.

    python benchmarks/shapes.py SHAPE DIRECTORY --type BF16     Hugging Face; F32, F16 or BF16
    python benchmarks/shapes.py SHAPE FILE.gguf --type Q4_0     GGUF; these, Q8_0, Q6_K, Q4_K, Q4_0
                                                                or Q4_K_M (the mixture)

They are for measuring speed and memory, and speak nonsense. The tokenizer is that of ``demo``,
and so is the size of the vocabulary, unless the shape says another and the layout is Hugging
Face's: no text has the tokens beyond. Weights come from a fixed seed and are written tensor by
tensor, so that a model may be larger than the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.catalog.locate import DEMO_DIRECTORY
from potluck.kernels import convert_rows
from potluck.kernels.runner import ThreadPool
from potluck.probe.cores import default_num_threads
from potluck.types.tensor import TensorFormat

SEED = 1
FLOAT_TYPES = ("F32", "F16", "BF16")
GGUF_TYPES = (*FLOAT_TYPES, "Q8_0", "Q6_K", "Q4_K", "Q4_0", "Q4_K_M")
_STANDARD_DEVIATION = 0.02
_MAX_CONTEXT_TOKENS = 8192
_MAX_FILE_BYTES = 5 * 10**9
_DRAWN_NUMBERS = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the sizes of a Llama-like model follow from."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int | None = None
    has_tied_head: bool = True


SHAPES = {
    "100M": Shape(
        hidden_size=768,
        intermediate_size=2048,
        num_layers=16,
        num_heads=12,
        num_key_value_heads=4,
        head_dim=64,
    ),
    "0.5B": Shape(  # the layers of Qwen2.5-0.5B
        hidden_size=896,
        intermediate_size=4864,
        num_layers=24,
        num_heads=14,
        num_key_value_heads=2,
        head_dim=64,
    ),
    "1B": Shape(  # the layers of Llama-3.2-1B
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        num_key_value_heads=8,
        head_dim=64,
    ),
    "3B": Shape(  # the layers of Llama-3.2-3B
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=28,
        num_heads=24,
        num_key_value_heads=8,
        head_dim=128,
    ),
    "8B": Shape(  # Llama-3-8B
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128_256,
        has_tied_head=False,
    ),
}


def main() -> None:
    """Write one model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", choices=GGUF_TYPES, default="BF16")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.path.suffix == ".gguf":
        write_gguf(shape, arguments.path, arguments.type)
    elif arguments.type not in FLOAT_TYPES:
        parser.error("in Hugging Face layout weights are floats; name a .gguf file for the others")
    else:
        write_hugging_face(shape, arguments.path, arguments.type)


def tensors(shape: Shape, vocab_size: int) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Each tensor's Hugging Face name, GGUF name and shape (rows first)."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    yield "model.embed_tokens.weight", "token_embd.weight", (vocab_size, hidden)
    for layer in range(shape.num_layers):
        theirs, gguf = f"model.layers.{layer}", f"blk.{layer}"
        yield f"{theirs}.input_layernorm.weight", f"{gguf}.attn_norm.weight", (hidden,)
        yield f"{theirs}.self_attn.q_proj.weight", f"{gguf}.attn_q.weight", (queries, hidden)
        yield f"{theirs}.self_attn.k_proj.weight", f"{gguf}.attn_k.weight", (keys, hidden)
        yield f"{theirs}.self_attn.v_proj.weight", f"{gguf}.attn_v.weight", (keys, hidden)
        yield f"{theirs}.self_attn.o_proj.weight", f"{gguf}.attn_output.weight", (hidden, queries)
        yield f"{theirs}.post_attention_layernorm.weight", f"{gguf}.ffn_norm.weight", (hidden,)
        yield f"{theirs}.mlp.gate_proj.weight", f"{gguf}.ffn_gate.weight", (inner, hidden)
        yield f"{theirs}.mlp.up_proj.weight", f"{gguf}.ffn_up.weight", (inner, hidden)
        yield f"{theirs}.mlp.down_proj.weight", f"{gguf}.ffn_down.weight", (hidden, inner)
    yield "model.norm.weight", "output_norm.weight", (hidden,)
    if not shape.has_tied_head:
        yield "lm_head.weight", "output.weight", (vocab_size, hidden)


def values(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Ones for norms, small random numbers for matrices."""
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    drawn = rng.standard_normal(shape, np.float32)
    drawn *= _STANDARD_DEVIATION
    return drawn


def in_type(drawn: NDArray[np.float32], type_name: str, pool: ThreadPool) -> NDArray[np.uint8]:
    """Numbers ``[rows, columns]`` or ``[columns]`` as a file has them, ``[rows, row bytes]``."""
    rows = drawn.reshape(-1, drawn.shape[-1])
    if type_name == "F32":
        return rows.view(np.uint8)
    if type_name == "F16":
        return rows.astype(np.float16).view(np.uint8)
    if type_name == "BF16":  # the upper half of a float32, rounded towards zero
        return np.ascontiguousarray(rows.view(np.uint16)[:, 1::2]).view(np.uint8)
    target = TensorFormat[type_name]
    num_rows, num_columns = rows.shape
    out = np.empty((num_rows, target.row_bytes(num_columns)), np.uint8)
    stored = rows.view(np.uint8).reshape(-1)
    convert_rows(stored, "f32", target.label, num_rows, num_columns, out.reshape(-1), pool)
    return out


def type_in_mixture(name: str, num_layers: int) -> str:
    """Of a tensor in a Q4_K_M file, as llama.cpp's quantizer chooses; the head is tied."""
    if name == "token_embd.weight":
        return "Q6_K"
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return "Q4_K"
    layer, eighth = int(name.split(".")[1]), num_layers // 8
    between = layer >= num_layers - eighth or (layer - eighth) % 3 == 2
    return "Q6_K" if layer < eighth or between else "Q4_K"


def write_hugging_face(shape: Shape, directory: Path, type_name: str = "BF16") -> None:
    """``config.json``, the tokenizer, and safetensors files of floats, of about 5 GB as usual."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads(
        (DEMO_DIRECTORY / "config.json").read_text(encoding="utf-8")
    )
    config |= {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": _MAX_CONTEXT_TOKENS,
        "tie_word_embeddings": shape.has_tied_head,
    }
    if shape.vocab_size is not None:
        config["vocab_size"] = shape.vocab_size
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for path in DEMO_DIRECTORY.glob("*.json"):
        if path.name != "config.json":
            shutil.copyfile(path, directory / path.name)
    listed = [(name, each) for name, _, each in tensors(shape, config["vocab_size"])]
    rng = np.random.default_rng(SEED)
    parts = list(_parts(listed, type_name))
    if len(parts) == 1:
        _write_safetensors(directory / "model.safetensors", parts[0], rng, type_name)
        return
    weight_map: dict[str, str] = {}
    for index, part in enumerate(parts, start=1):
        name = f"model-{index:05}-of-{len(parts):05}.safetensors"
        weight_map |= {tensor: name for tensor, _ in part}
        _write_safetensors(directory / name, part, rng, type_name)
    total = sum(_num_bytes(dimensions, type_name) for _, dimensions in listed)
    index_document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps(index_document, indent=2) + "\n", encoding="utf-8"
    )


def stored_bytes(shape: Shape) -> int:
    """Of a model's weights in BF16; a vocabulary of demo's size is not counted."""
    return sum(_num_bytes(each, "BF16") for _, _, each in tensors(shape, shape.vocab_size or 0))


def _num_bytes(dimensions: tuple[int, ...], type_name: str) -> int:
    return (4 if type_name == "F32" else 2) * math.prod(dimensions)


def _parts(
    listed: Sequence[tuple[str, tuple[int, ...]]], type_name: str
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Tensors that share a file."""
    part: list[tuple[str, tuple[int, ...]]] = []
    size = 0
    for name, dimensions in listed:
        num_bytes = _num_bytes(dimensions, type_name)
        if part and size + num_bytes > _MAX_FILE_BYTES:
            yield part
            part, size = [], 0
        part.append((name, dimensions))
        size += num_bytes
    yield part


def _write_safetensors(
    path: Path,
    part: Sequence[tuple[str, tuple[int, ...]]],
    rng: np.random.Generator,
    type_name: str,
) -> None:
    header: dict[str, object] = {}
    offset = 0
    for name, dimensions in part:
        end = offset + _num_bytes(dimensions, type_name)
        header[name] = {"dtype": type_name, "shape": dimensions, "data_offsets": (offset, end)}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    pool = ThreadPool(default_num_threads())
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, dimensions in part:
            for rows in _drawn(rng, dimensions):
                file.write(in_type(rows, type_name, pool).data)


def _drawn(rng: np.random.Generator, dimensions: tuple[int, ...]) -> Iterator[NDArray[np.float32]]:
    """A tensor's values, rows of a matrix a few at a time."""
    if len(dimensions) == 1:
        yield values(rng, dimensions)
        return
    num_rows, num_columns = dimensions
    step = max(1, _DRAWN_NUMBERS // num_columns)
    for start in range(0, num_rows, step):
        yield values(rng, (min(step, num_rows - start), num_columns))


def write_gguf(shape: Shape, path: Path, type_name: str) -> None:
    """One GGUF file; norms stay F32."""
    import gguf

    tokenizer = json.loads((DEMO_DIRECTORY / "tokenizer.json").read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"] | {
        each["content"]: each["id"] for each in tokenizer["added_tokens"]
    }
    special = {each["id"] for each in tokenizer["added_tokens"]}
    vocabulary = sorted(ids, key=ids.__getitem__)
    merges = [
        each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]
    ]
    demo = json.loads((DEMO_DIRECTORY / "config.json").read_text(encoding="utf-8"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(_MAX_CONTEXT_TOKENS)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(demo["rope_theta"])
    writer.add_layer_norm_rms_eps(demo["rms_norm_eps"])
    writer.add_vocab_size(len(vocabulary))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types(
        [control if index in special else normal for index in range(len(vocabulary))]
    )
    writer.add_token_merges(merges)
    writer.add_bos_token_id(demo["bos_token_id"])
    writer.add_eos_token_id(demo["eos_token_id"])

    listed = []
    for _, name, dimensions in tensors(shape, len(vocabulary)):
        chosen = "F32" if len(dimensions) == 1 else type_name
        if chosen == "Q4_K_M":
            chosen = type_in_mixture(name, shape.num_layers)
        listed.append((dimensions, chosen))
        kind = gguf.GGMLQuantizationType[chosen]
        block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(dimensions)) // block * block_bytes
        writer.add_tensor_info(name, dimensions, np.dtype(np.float32), num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pool = ThreadPool(default_num_threads())
    rng = np.random.default_rng(SEED)
    for dimensions, chosen in listed:
        writer.write_tensor_data(in_type(values(rng, dimensions), chosen, pool))
    writer.close()


if __name__ == "__main__":
    main()
