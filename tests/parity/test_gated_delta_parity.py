"""Qwen3-Next and Qwen3.5 against transformers, from safetensors and from GGUF files, in F32.

Prompts are longer than the chunks of 64 tokens in which transformers computes the gated delta rule.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines import parity_cases
from support.engines.parity import assert_logits_agree, assert_mostly_close, native_error_limit
from support.engines.parity_cases import (
    case_named,
    forgotten_in,
    logits_forgetting,
    logits_of_files,
    made_once,
)
from support.engines.proofs import PROOFS
from support.engines.stages import Stages, native_engine
from support.models.changes import in_attention, in_experts, in_recurrences, in_ropes
from support.models.gated_delta_models import make_gated_delta_model, write_gated_delta_gguf
from support.models.random_models import RandomModel, random_tokens, torch_logits

from potluck.catalog import describe_model, open_weights
from potluck.models.names import FileKind
from potluck.models.registry import skipped_parts
from potluck.types.model import HeadNorm
from potluck.types.program import Shard

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(parity_cases.Case):
    """``sees``: it is the text part of a model with a vision tower."""

    sees: bool = False


ROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 500.0,
    "partial_rotary_factor": 0.25,
}
SECTIONS: dict[str, Any] = {"mrope_interleaved": True, "mrope_section": [2, 1, 1]}
DELTA: dict[str, Any] = {
    "num_hidden_layers": 5,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    # llama.cpp knows heads of one size only.
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "rope_parameters": ROPE,
}
DENSE = DELTA | {"rope_parameters": ROPE | SECTIONS}
EXPERTS: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}


CASES: tuple[Case, ...] = (
    Case(
        name="qwen3-next",
        family="qwen3_next",
        settings=DELTA | EXPERTS,
        forgotten={
            "partial rope": in_ropes(rotary_dim=32),
            "norms of heads": in_attention(head_norm=HeadNorm.NONE),
            "shares": in_experts(norm_topk_prob=False),
            "shared gate": in_experts(has_shared_gate=False),
            "order of heads": in_recurrences(is_tiled=True),
            "epsilon": in_recurrences(epsilon=0.1),
        },
    ),
    Case(
        name="qwen3-next-some-layers-dense-biases",
        family="qwen3_next",
        settings=DELTA
        | EXPERTS
        | {
            "attention_bias": True,
            "mlp_only_layers": [4],
            "decoder_sparse_step": 2,
            "norm_topk_prob": False,
            "layer_types": ["full_attention", *["linear_attention"] * 3, "full_attention"],
            "linear_conv_kernel_dim": 3,
            "linear_key_head_dim": 24,
            "linear_value_head_dim": 48,
            "tie_word_embeddings": True,
        },
        has_gguf=False,
    ),
    Case(
        name="qwen3-next-yarn",
        family="qwen3_next",
        settings=DELTA
        | EXPERTS
        | {
            "num_hidden_layers": 4,
            "rope_parameters": ROPE
            | {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    Case(
        name="qwen3.5",
        family="qwen3_5_text",
        settings=DENSE,
        forgotten={
            "partial rope": in_ropes(rotary_dim=32),
            "order of heads": in_recurrences(is_tiled=True),
        },
    ),
    Case(
        name="qwen3.5-equal-heads-tied-sees",
        family="qwen3_5_text",
        settings=DENSE
        | {"num_hidden_layers": 4, "linear_num_key_heads": 4, "tie_word_embeddings": True},
        sees=True,
    ),
    Case(
        name="qwen3.5-three-heads-for-one-sees",
        family="qwen3_5_text",
        settings=DENSE
        | {
            "num_hidden_layers": 3,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 48,
            "linear_value_head_dim": 48,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "rope_parameters": ROPE
            | SECTIONS
            | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        },
        sees=True,
    ),
    Case(
        name="qwen3.5-moe",
        family="qwen3_5_moe_text",
        settings=DENSE | EXPERTS,
        forgotten={
            "shares": in_experts(norm_topk_prob=False),
            "shared gate": in_experts(has_shared_gate=False),
        },
    ),
    Case(
        name="qwen3.5-moe-sees",
        family="qwen3_5_moe_text",
        settings=DENSE | EXPERTS | {"num_hidden_layers": 4},
        sees=True,
    ),
    Case(
        name="qwen3.5-all-attention",
        family="qwen3_5_text",
        settings=DENSE | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2},
        has_gguf=False,
    ),
)
WITH_GGUF = [case for case in CASES if case.has_gguf]

Models = Callable[[Case], RandomModel]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    def make(case: Case, directory: Path) -> RandomModel:
        return make_gated_delta_model(
            case.family, case.settings, directory, seed=11, sees=case.sees
        )

    return made_once(tmp_path_factory, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_at_every_position(case: Case, models: Models) -> None:
    model, tokens = models(case), random_tokens(150)
    actual = logits_of_files(model.directory, tokens, boundaries=[1])
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_prompts_in_two_chunks(case: Case, models: Models) -> None:
    model, tokens = models(case), random_tokens(72, seed=3)
    expected = torch_logits(model, tokens)[-1]
    description = describe_model(str(model.directory))
    whole = Shard.whole(description.config.num_layers)
    for boundary in range(1, 5):
        with (
            closing(open_weights(description, [whole])) as source,
            Stages(description.config, source, boundaries=[boundary]) as stages,
        ):
            for length in range(boundary, 72, 4):
                stages.logits(stages.slice(0, tokens[:length]))
                logits = stages.logits(stages.slice(0, tokens[length:], length))
                assert np.abs(logits[0] - expected).max() < TOLERANCE, length


@pytest.mark.parametrize("case", WITH_GGUF, ids=str)
def test_gguf_files_give_the_same_logits(case: Case, models: Models, tmp_path: Path) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_gated_delta_gguf(path, model)
    assert describe_model(str(path)).files.kind is FileKind.GGUF
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("qwen3-next", {"is_legacy": True}),
        ("qwen3-next", {"fuses_experts": True}),
        ("qwen3-next", {"predicts": True}),
        ("qwen3.5", {"predicts": True}),
        ("qwen3.5-moe", {"fuses_experts": True, "predicts": True}),
    ],
)
def test_other_forms_of_gguf_files(
    name: str, options: Mapping[str, Any], models: Models, tmp_path: Path
) -> None:
    model, tokens = models(case_named(CASES, name)), random_tokens(40, seed=4)
    path = tmp_path / "model.gguf"
    write_gated_delta_gguf(path, model, **options)
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)
    names = list(open_names(path))
    skipped = skipped_parts(describe_model(str(path)).config, names, FileKind.GGUF)
    assert skipped == (("multi-token prediction layers",) if "predicts" in options else ())


def open_names(path: Path) -> list[str]:
    """The names of a file's tensors."""
    from gguf import GGUFReader

    return [tensor.name for tensor in GGUFReader(path).tensors]


def test_published_forms_of_safetensors(tmp_path: Path) -> None:
    """In BF16, experts in one tensor for a layer, and layers that predict further tokens."""
    import torch
    from safetensors.torch import save_file

    case = case_named(CASES, "qwen3.5-moe-sees")
    model = make_gated_delta_model(
        case.family, case.settings, tmp_path / "model", seed=11, sees=True
    )
    tensors = {name: torch.from_numpy(values).bfloat16() for name, values in model.state.items()}
    with torch.no_grad():
        for parameter in model.torch_model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    for name in [name for name in tensors if ".experts.0." in name]:
        stem, _, tail = name.partition(".experts.0.")
        stack = [tensors.pop(f"{stem}.experts.{expert}.{tail}") for expert in range(7)]
        tensors[f"{stem}.experts.{tail}"] = torch.stack(stack)
    for name in [name for name in tensors if name.endswith("experts.gate_proj.weight")]:
        stem = name.removesuffix("gate_proj.weight")
        parts = tensors.pop(name), tensors.pop(f"{stem}up_proj.weight")
        tensors[f"{stem}gate_up_proj"] = torch.cat(parts, dim=1)
        tensors[f"{stem}down_proj"] = tensors.pop(f"{stem}down_proj.weight")
    tensors["mtp.fc.weight"] = torch.ones((96, 192))
    tensors["mtp.layers.0.mlp.gate.weight"] = torch.ones((7, 96))
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    description = describe_model(str(tmp_path))
    assert description.config.name_variants == ("fused experts",)
    assert skipped_parts(description.config, tensors, FileKind.HUGGING_FACE) == (
        "multi-token prediction layers",
        "a vision tower",
    )
    tokens = random_tokens(40)
    expected = torch_logits(model, tokens)
    actual = logits_of_files(tmp_path, tokens, boundaries=[2])
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)
    by_native = logits_of_files(tmp_path, tokens, engine_factory=native_engine)
    limit = native_error_limit(num_layers=4, is_quantized=False, are_activations_bf16=True)
    assert_mostly_close(by_native, expected, limit=limit)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_native_engine(case: Case, models: Models, tmp_path: Path) -> None:
    model, tokens = models(case), random_tokens(90, seed=4)
    expected = torch_logits(model, tokens)
    paths = [model.directory]
    if case.has_gguf:
        paths.append(tmp_path / "model.gguf")
        write_gated_delta_gguf(paths[1], model)
    num_layers = describe_model(str(model.directory)).config.num_layers
    limit = native_error_limit(num_layers=num_layers, is_quantized=False)
    for path in paths:
        actual = logits_of_files(path, tokens, engine_factory=native_engine)
        assert_mostly_close(actual, expected, limit=limit)


def test_the_native_engine_with_quantized_weights(models: Models, tmp_path: Path) -> None:
    model, tokens = models(case_named(CASES, "qwen3.5")), random_tokens(60, seed=4)
    path = tmp_path / "model.gguf"
    kind = gguf.GGMLQuantizationType.Q8_0
    parts = ("attn_qkv", "attn_gate", "attn_q.", "attn_k.", "attn_v.", "ffn_", "ssm_alpha")
    write_gated_delta_gguf(path, model, formats=dict.fromkeys((*parts, "ssm_out"), kind))
    expected = logits_of_files(path, tokens)
    actual = logits_of_files(path, tokens, engine_factory=native_engine)
    # Twice, as the norms of gated delta nets enlarge the errors of small outputs.
    limit = 2 * native_error_limit(num_layers=5, is_quantized=True)
    assert_mostly_close(actual, expected, limit=limit)


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "qwen3.5-three-heads-for-one-sees"])
def test_bits_depend_on_neither_chunks_nor_cuts_nor_batches(name: str, models: Models) -> None:
    model, tokens = models(case_named(CASES, name)), random_tokens(70, seed=5)
    description = describe_model(str(model.directory))
    num_layers = description.config.num_layers
    expected: NDArray[np.float32] | None = None
    for boundaries in ([], *([each] for each in range(num_layers + 1))):
        with (
            closing(open_weights(description, [Shard.whole(num_layers)])) as source,
            Stages(
                description.config, source, boundaries=boundaries, engine_factory=native_engine
            ) as stages,
        ):
            if expected is None:
                expected = stages.logits_at_all_positions(tokens)
            for length in range(1, 56, 5 if boundaries else 1):
                stages.logits(stages.slice(0, tokens[:length]), stages.slice(1, tokens[:7]))
                end = min(70, length + 60)
                logits = stages.logits(
                    stages.slice(1, tokens[7:9], 7),
                    stages.slice(0, tokens[length:end], length),
                )
                assert np.array_equal(logits[0], expected[8])
                assert np.array_equal(logits[1], expected[end - 1]), (boundaries, length)


@pytest.mark.parametrize(("case", "what"), forgotten_in(CASES))
def test_a_forgotten_feature_would_show(case: Case, what: str, models: Models) -> None:
    model, tokens = models(case), random_tokens(60)
    actual = logits_forgetting(model, case.forgotten[what], tokens)
    PROOFS.noted.clear()  # no model of the family is so
    assert np.abs(actual - torch_logits(model, tokens)[-1]).max() > 100 * TOLERANCE
