"""Llama-like models whose weights are all zero and take no disk: for what counts bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

SAFETENSORS_BYTES = {"F32": 4, "BF16": 2, "F16": 2}
"""Per number, by what a safetensors file calls the type."""

_GGUF_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseModel:
    """``stored`` is a type of safetensors, or of GGUF: Q8_0 or Q4_K, with vectors in F32."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context_tokens: int
    has_tied_head: bool
    stored: str

    def embedding(self) -> dict[str, tuple[int, ...]]:
        """Tensors by their Hugging Face names."""
        return {"model.embed_tokens.weight": (self.vocab_size, self.hidden_size)}

    def layer(self, index: int) -> dict[str, tuple[int, ...]]:
        hidden, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        shapes = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden),
            "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden),
            "self_attn.o_proj": (hidden, queries),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        return {f"model.layers.{index}.{name}.weight": shape for name, shape in shapes.items()}

    def head(self) -> dict[str, tuple[int, ...]]:
        """The final norm, and the head's own matrix if it has one."""
        own = {} if self.has_tied_head else {"lm_head.weight": (self.vocab_size, self.hidden_size)}
        return {"model.norm.weight": (self.hidden_size,), **own}

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield from self.embedding().items()
        for index in range(self.num_layers):
            yield from self.layer(index).items()
        yield from self.head().items()

    def stored_bytes(self, tensors: Mapping[str, tuple[int, ...]]) -> int:
        """What the tensors take in the file."""
        return sum(self._size(shape) for shape in tensors.values())

    def _size(self, shape: tuple[int, ...]) -> int:
        count = math.prod(shape)
        if self.stored in SAFETENSORS_BYTES:
            return count * SAFETENSORS_BYTES[self.stored]
        block, block_bytes = gguf.GGML_QUANT_SIZES[self._kind(shape)]
        return count // int(block) * int(block_bytes)

    def _kind(self, shape: tuple[int, ...]) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType["F32" if len(shape) == 1 else self.stored]

    def write(self, directory: Path) -> Path:
        """Write it; what to call it as MODEL."""
        if self.stored not in SAFETENSORS_BYTES:
            path = directory / "model.gguf"
            self._write_gguf(path)
            return path
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_context_tokens,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": self.has_tied_head,
        }
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        header: dict[str, object] = {}
        end = 0
        for name, shape in self.tensors():
            start, end = end, end + self._size(shape)
            header[name] = {"dtype": self.stored, "shape": shape, "data_offsets": (start, end)}
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)
        with (directory / "model.safetensors").open("wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            file.truncate(file.tell() + end)
        return directory

    def _write_gguf(self, path: Path) -> None:
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_vocab_size(self.vocab_size)
        writer.add_context_length(self.max_context_tokens)
        writer.add_embedding_length(self.hidden_size)
        writer.add_block_count(self.num_layers)
        writer.add_feed_forward_length(self.intermediate_size)
        writer.add_head_count(self.num_heads)
        writer.add_head_count_kv(self.num_kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_rope_dimension_count(self.head_dim)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, self.num_layers)
        data_bytes = 0
        for name, shape in self.tensors():
            theirs = names.get_name(name, try_suffixes=(".weight",))
            kind, size = self._kind(shape), self._size(shape)
            writer.add_tensor_info(theirs, shape, np.dtype(np.float32), size, raw_dtype=kind)
            data_bytes += size + -size % _GGUF_ALIGNMENT
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        writer.close()
        with path.open("r+b") as file:
            file.seek(0, 2)
            start = file.tell() + -file.tell() % _GGUF_ALIGNMENT
            file.truncate(start + data_bytes)
