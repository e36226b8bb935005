"""Gemma 2, 3 and 4 through ``potluck.Model`` against transformers, from every kind of file.

As ``test_native_parity``, which says what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.engines.continuation import assert_continues_as_transformers
from support.engines.parity import native_error_limit
from support.models.gemma_models import make_gemma, write_gemma_gguf
from support.models.text_models import (
    gemma4_metadata,
    gemma_json,
    sentence_piece_metadata,
    write_model_directory,
)

from potluck.types.tensor import TensorFormat

# More tokens than the tokenizers have, as published models do.
SIZES: dict[str, Any] = {
    "vocab_size": 1120,
    "hidden_size": 128,
    "intermediate_size": 256,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "sliding_window": 21,
    "final_logit_softcapping": 8.0,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
GEMMA2: dict[str, Any] = {**SIZES, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 4.0}
GEMMA3: dict[str, Any] = {
    **SIZES,
    "final_logit_softcapping": None,
    "query_pre_attn_scalar": 32,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
GEMMA4: dict[str, Any] = {
    **SIZES,
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 64,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 64,
}
SMALL: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "attention_k_eq_v": False,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 1120,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model; ``stages`` is how many it can be cut into."""

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrapper: str | None = None
    stages: int = 2

    def __str__(self) -> str:
        return self.name

    @property
    def num_layers(self) -> int:
        return len(self.settings["layer_types"])


CASES = (
    Case(name="gemma-2", family="gemma2", settings=GEMMA2),
    Case(name="gemma-3", family="gemma3_text", settings=GEMMA3, wrapper="gemma3"),
    Case(name="gemma-4", family="gemma4_text", settings=GEMMA4, wrapper="gemma4"),
    Case(name="gemma-4-experts", family="gemma4_text", settings=GEMMA4 | EXPERTS),
    Case(name="gemma-4-small", family="gemma4_text", settings=GEMMA4 | SMALL, stages=1),
)


def limit_of(case: Case, tensor_format: TensorFormat) -> float:
    """Twice as much for quantized experts: rounding may choose another of two that are close."""
    limit = native_error_limit(num_layers=case.num_layers, is_quantized=tensor_format.is_quantized)
    return 2 * limit if tensor_format.is_quantized and "num_experts" in case.settings else limit


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_safetensors(case: Case, dtype: str, tmp_path: Path) -> None:
    write_model_directory(tmp_path, gemma_json())
    model = make_gemma(
        case.family,
        case.settings,
        tmp_path,
        wrapper=case.wrapper,
        dtype=dtype,
        seed=5,
        is_aimed=True,
    )
    limit = limit_of(case, TensorFormat.F32)
    assert_continues_as_transformers(tmp_path, model, gemma_json(), limit=limit, stages=case.stages)


@pytest.mark.parametrize("tensor_format", [TensorFormat.F16, TensorFormat.Q8_0, TensorFormat.Q4_0])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gguf(case: Case, tensor_format: TensorFormat, tmp_path: Path) -> None:
    model = make_gemma(
        case.family, case.settings, tmp_path / "hf", wrapper=case.wrapper, seed=5, is_aimed=True
    )
    is_4 = case.family.startswith("gemma4")
    path = tmp_path / "model.gguf"
    write_gemma_gguf(
        path,
        model,
        gemma4_metadata() if is_4 else sentence_piece_metadata(),
        tensor_format=tensor_format,
    )
    assert_continues_as_transformers(
        path,
        model,
        gemma_json() if is_4 else None,
        limit=limit_of(case, tensor_format),
        stages=case.stages,
    )
