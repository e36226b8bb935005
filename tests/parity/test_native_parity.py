"""Whole models through ``potluck.Model`` against transformers: every family, every file format.

The native engine continues a prompt; transformers computes the same tokens at once, in float32,
from weights that are what the file's bytes stand for. Every decided token must be the likeliest
one, and every log-probability within what the formats allow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from support.engines.continuation import assert_continues_as_transformers
from support.engines.parity import native_error_limit
from support.models.gguf_models import write_gguf_model
from support.models.random_models import (
    LLAMA3_ROPE,
    RandomModel,
    aim_embedding,
    load_state,
    make_random_model,
)
from support.models.text_models import (
    LLAMA3_SPECIAL,
    QWEN2_SPECIAL,
    byte_level_metadata,
    llama2_json,
    llama3_json,
    qwen2_json,
    sentence_piece_metadata,
    write_model_directory,
)

from potluck.types.tensor import TensorFormat

NUM_LAYERS = 3
MAX_FILE_SIZE = "1MB"
# Divisible by 256, as K formats need it; more tokens than the tokenizers have, as real models do.
SIZES = {
    "vocab_size": 760,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": NUM_LAYERS,
    "head_dim": 64,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
    "norm_topk_prob": True,
}
TOKENIZERS: Mapping[str, Callable[[], str]] = {
    "llama": llama3_json,
    "mistral": llama2_json,
    "qwen2": qwen2_json,
    "qwen3": qwen2_json,
    "qwen3_moe": qwen2_json,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and the type of its safetensors files."""

    name: str
    family: str
    dtype: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


CASES = (
    Case(name="llama-f32", family="llama", dtype="float32"),
    Case(
        name="llama-3-rope-bf16",
        family="llama",
        dtype="bfloat16",
        settings={"rope_parameters": LLAMA3_ROPE},
    ),
    Case(
        name="llama-tied-f16",
        family="llama",
        dtype="float16",
        settings={"tie_word_embeddings": True, "head_dim": 40},
    ),
    Case(
        name="mistral-window-f16",
        family="mistral",
        dtype="float16",
        settings={"sliding_window": 21},
    ),
    Case(name="qwen2-bf16", family="qwen2", dtype="bfloat16"),
    Case(
        name="qwen2-window-tied-f32",
        family="qwen2",
        dtype="float32",
        settings={
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 21,
            "max_window_layers": 1,
        },
    ),
    Case(name="qwen3-bf16", family="qwen3", dtype="bfloat16", settings={"head_dim": 72}),
    Case(name="qwen3-f16", family="qwen3", dtype="float16", settings={"head_dim": 128}),
    Case(
        name="qwen3-moe-f32",
        family="qwen3_moe",
        dtype="float32",
        settings=EXPERTS | {"decoder_sparse_step": 2},
    ),
    Case(name="qwen3-moe-bf16", family="qwen3_moe", dtype="bfloat16", settings=EXPERTS),
)


def make_model(
    directory: Path, family: str, settings: Mapping[str, Any], dtype: str
) -> RandomModel:
    """With a small ``max_file_size``, so that the weights are in several files."""
    wanted = {**SIZES, **settings}
    if family == "qwen2":
        del wanted["head_dim"]  # it has no such setting
    write_model_directory(
        directory,
        TOKENIZERS[family](),
        config={"bos_token": "<s>"} if family == "mistral" else {},
    )
    return make_random_model(
        family, wanted, directory, seed=5, dtype=dtype, max_file_size=MAX_FILE_SIZE
    )


FORMATS = {
    "float32": TensorFormat.F32,
    "float16": TensorFormat.F16,
    "bfloat16": TensorFormat.BF16,
}


def limit_of(format: TensorFormat) -> float:
    return native_error_limit(
        num_layers=NUM_LAYERS,
        is_quantized=format.is_quantized,
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_safetensors(case: Case, tmp_path: Path) -> None:
    model = make_model(tmp_path, case.family, case.settings, case.dtype)
    format = FORMATS[case.dtype]
    assert (tmp_path / "model.safetensors.index.json").exists()
    load_state(model, model.state)  # bf16 and f16 weights, computed in float32
    assert_continues_as_transformers(
        tmp_path, model, TOKENIZERS[case.family](), limit=limit_of(format)
    )


def library_metadata(tokenizer_json: str, name: str, special: tuple[str, ...]) -> dict[str, Any]:
    return byte_level_metadata(tokenizers.Tokenizer.from_str(tokenizer_json), name, special)


GGUF_TOKENIZERS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "llama": lambda: library_metadata(llama3_json(), "llama-bpe", LLAMA3_SPECIAL),
    "mistral": sentence_piece_metadata,
    "qwen2": lambda: library_metadata(qwen2_json(), "qwen2", QWEN2_SPECIAL),
    "qwen3": lambda: library_metadata(qwen2_json(), "qwen2", QWEN2_SPECIAL),
    "qwen3_moe": lambda: library_metadata(qwen2_json(), "qwen2", QWEN2_SPECIAL),
}

# What llama.cpp's Q4_K_M and Q5_K_M files look like: most in one K format, some in Q6_K.
Q4_K_M = {
    "token_embd": TensorFormat.F16,
    "attn_v": TensorFormat.Q6_K,
    "ffn_down": TensorFormat.Q6_K,
    "attn": TensorFormat.Q4_K,
    "ffn": TensorFormat.Q4_K,
    "output.weight": TensorFormat.Q6_K,
}
Q5_K_M = {
    "token_embd": TensorFormat.F16,
    "attn": TensorFormat.Q5_K,
    "ffn": TensorFormat.Q5_K,
    "output.weight": TensorFormat.Q6_K,
}
FILES: tuple[tuple[str, str, TensorFormat | Mapping[str, TensorFormat]], ...] = (
    ("llama", "f32", TensorFormat.F32),
    ("qwen2", "f16", TensorFormat.F16),
    ("qwen3", "bf16", TensorFormat.BF16),
    ("llama", "q8_0", TensorFormat.Q8_0),
    ("mistral", "q4_0", TensorFormat.Q4_0),
    ("qwen2", "q4_1", TensorFormat.Q4_1),
    ("qwen3", "q5_0", TensorFormat.Q5_0),
    ("mistral", "q5_1", TensorFormat.Q5_1),
    ("llama", "q4_k_m", Q4_K_M),
    ("qwen2", "q4_k_m", Q4_K_M),
    ("qwen3", "q5_k_m", Q5_K_M),
    ("qwen3_moe", "f16", TensorFormat.F16),
    ("qwen3_moe", "q8_0", TensorFormat.Q8_0),
    ("qwen3_moe", "q4_k_m", Q4_K_M),
)


@pytest.mark.parametrize(
    ("family", "formats"),
    [(family, formats) for family, _, formats in FILES],
    ids=[f"{family}-{name}" for family, name, _ in FILES],
)
def test_gguf(
    family: str, formats: TensorFormat | Mapping[str, TensorFormat], tmp_path: Path
) -> None:
    of_family: dict[str, dict[str, Any]] = {
        "mistral": {"sliding_window": None},
        "qwen3_moe": EXPERTS,
    }
    settings = of_family.get(family, {})
    model = make_model(tmp_path / "hf", family, settings, "float32")
    tokenizer = GGUF_TOKENIZERS[family]()
    # The formats of a mixture are all quantized but the embedding's.
    format = formats if isinstance(formats, TensorFormat) else TensorFormat.Q4_K
    path = tmp_path / "model.gguf"
    if format.is_quantized:
        # What activations lose in rounding must not decide: a first file says what the head is.
        stored = write_gguf_model(path, model, tokenizer, formats=formats)
        aim_embedding(model, stored["lm_head.weight"])
    load_state(model, write_gguf_model(path, model, tokenizer, formats=formats))
    assert_continues_as_transformers(path, model, TOKENIZERS[family](), limit=limit_of(format))
