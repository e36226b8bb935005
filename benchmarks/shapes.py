"""Makes large models with random weights, in the shapes of models that people run.

    python benchmarks/shapes.py SHAPE DIRECTORY                 Hugging Face layout, BF16
    python benchmarks/shapes.py SHAPE FILE.gguf --type Q4_0     GGUF; Q8_0, Q4_0, F16 or BF16

They are for measuring speed and memory, and speak nonsense. The tokenizer is that of ``demo``,
and so is the size of the vocabulary, unless the shape says another and the layout is Hugging
Face's: no text has the tokens beyond. Weights
come from a fixed seed and are written tensor by tensor, so that a model may be larger than
the memory.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 1
_STANDARD_DEVIATION = 0.02
_MAX_CONTEXT_TOKENS = 8192
_MAX_FILE_BYTES = 5 * 10**9
_DRAWN_NUMBERS = 2**22
_DEMO = Path(str(files("potluck"))) / "data" / "demo"


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
    parser.add_argument("--type", choices=("Q8_0", "Q4_0", "F16", "BF16"), help="of a GGUF file")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    if arguments.path.suffix == ".gguf":
        write_gguf(shape, arguments.path, arguments.type or "Q8_0")
    elif arguments.type not in (None, "BF16"):
        parser.error("--type is for GGUF files; in Hugging Face layout weights are BF16")
    else:
        write_hugging_face(shape, arguments.path)


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


def write_hugging_face(shape: Shape, directory: Path) -> None:
    """``config.json``, the tokenizer, and safetensors files in BF16, of about 5 GB as usual."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((_DEMO / "config.json").read_text(encoding="utf-8"))
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
    for path in _DEMO.glob("*.json"):
        if path.name != "config.json":
            shutil.copyfile(path, directory / path.name)
    listed = [(name, each) for name, _, each in tensors(shape, config["vocab_size"])]
    rng = np.random.default_rng(SEED)
    parts = list(_parts(listed))
    if len(parts) == 1:
        _write_safetensors(directory / "model.safetensors", parts[0], rng)
        return
    weight_map: dict[str, str] = {}
    for index, part in enumerate(parts, start=1):
        name = f"model-{index:05}-of-{len(parts):05}.safetensors"
        weight_map |= {tensor: name for tensor, _ in part}
        _write_safetensors(directory / name, part, rng)
    total = sum(_bf16_bytes(dimensions) for _, dimensions in listed)
    index_document = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(
        json.dumps(index_document, indent=2) + "\n", encoding="utf-8"
    )


def stored_bytes(shape: Shape) -> int:
    """Of a model's weights in BF16; a vocabulary of demo's size is not counted."""
    return sum(_bf16_bytes(each) for _, _, each in tensors(shape, shape.vocab_size or 0))


def _bf16_bytes(dimensions: tuple[int, ...]) -> int:
    return 2 * math.prod(dimensions)


def _parts(
    listed: Sequence[tuple[str, tuple[int, ...]]],
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Tensors that share a file."""
    part: list[tuple[str, tuple[int, ...]]] = []
    size = 0
    for name, dimensions in listed:
        num_bytes = _bf16_bytes(dimensions)
        if part and size + num_bytes > _MAX_FILE_BYTES:
            yield part
            part, size = [], 0
        part.append((name, dimensions))
        size += num_bytes
    yield part


def _write_safetensors(
    path: Path, part: Sequence[tuple[str, tuple[int, ...]]], rng: np.random.Generator
) -> None:
    header: dict[str, object] = {}
    offset = 0
    for name, dimensions in part:
        end = offset + _bf16_bytes(dimensions)
        header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": (offset, end)}
        offset = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for _, dimensions in part:
            for rows in _drawn(rng, dimensions):
                # The upper half of a float32 is a bfloat16, rounded towards zero.
                file.write(np.ascontiguousarray(rows.view(np.uint16)[..., 1::2]).tobytes())


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

    tokenizer = json.loads((_DEMO / "tokenizer.json").read_text(encoding="utf-8"))
    ids = tokenizer["model"]["vocab"] | {
        each["content"]: each["id"] for each in tokenizer["added_tokens"]
    }
    special = {each["id"] for each in tokenizer["added_tokens"]}
    vocabulary = sorted(ids, key=ids.__getitem__)
    merges = [
        each if isinstance(each, str) else " ".join(each) for each in tokenizer["model"]["merges"]
    ]
    demo = json.loads((_DEMO / "config.json").read_text(encoding="utf-8"))
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

    kind = gguf.GGMLQuantizationType[type_name]
    plain = gguf.GGMLQuantizationType.F32
    listed = [
        (name, dimensions, plain if len(dimensions) == 1 else kind)
        for _, name, dimensions in tensors(shape, len(vocabulary))
    ]
    for name, dimensions, each in listed:
        block, block_bytes = gguf.GGML_QUANT_SIZES[each]
        num_bytes = int(np.prod(dimensions)) // block * block_bytes
        writer.add_tensor_info(name, dimensions, np.dtype(np.float32), num_bytes, raw_dtype=each)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(SEED)
    for _, dimensions, each in listed:
        writer.write_tensor_data(gguf.quantize(values(rng, dimensions), each))
    writer.close()


if __name__ == "__main__":
    main()
