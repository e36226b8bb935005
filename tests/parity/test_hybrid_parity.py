"""Families with recurrent layers against transformers, from safetensors and from GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.engines.parity import assert_logits_agree, assert_mostly_close, native_error_limit
from support.engines.parity_cases import (
    Case,
    forgotten_in,
    logits_forgetting,
    logits_of_files,
    made_once,
)
from support.engines.proofs import PROOFS
from support.engines.stages import Stages, native_engine
from support.models.changes import in_attention, in_experts, in_layers, in_recurrences
from support.models.hybrid_models import make_hybrid_model, write_hybrid_gguf
from support.models.random_models import RandomModel, random_tokens, torch_logits
from support.models.state_dict_source import StateDictSource

from potluck.catalog import describe_model
from potluck.models.names import FileKind
from potluck.types.model import HeadNorm
from potluck.types.program import ExpertScore

TOLERANCE = 1e-4


THETA = {"rope_type": "default", "rope_theta": 500.0}
LFM2: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_multiple_of": 32,
    "rope_parameters": THETA,
    "tie_word_embeddings": True,
}
LFM2_MOE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "num_dense_layers": 1,
    "rope_parameters": THETA,
    "tie_word_embeddings": True,
}
GRANITE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "layer_types": ["mamba", "mamba", "attention", "mamba"],
    "attention_multiplier": 0.1,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
    "position_embedding_type": "nope",
    "rope_parameters": THETA,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 160,
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "tie_word_embeddings": True,
}
GRANITE_EXPERTS: dict[str, Any] = GRANITE | {
    "num_local_experts": 7,
    "num_experts_per_tok": 3,
    "intermediate_size": 48,
    "shared_intermediate_size": 64,
}

CASES: tuple[Case, ...] = (
    Case(
        name="lfm2",
        family="lfm2",
        settings=LFM2,
        forgotten={
            "norms of heads": in_attention(head_norm=HeadNorm.NONE),
            "attention without rope": in_attention(rope=None),
        },
    ),
    Case(
        name="lfm2-whole-width-untied",
        family="lfm2",
        settings=LFM2
        | {
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
            "conv_L_cache": 4,
            "layer_types": ["full_attention", "conv", "conv", "full_attention"],
        },
    ),
    Case(
        name="lfm2-biases-multiplier",
        family="lfm2",
        settings=LFM2
        | {
            "conv_bias": True,
            "block_ffn_dim_multiplier": 1.3,
            "layer_types": None,
            "full_attn_idxs": [1],
        },
        forgotten={"biases": in_recurrences(has_bias=False)},
        has_gguf=False,
    ),
    Case(
        name="lfm2-moe",
        family="lfm2_moe",
        settings=LFM2_MOE,
        forgotten={
            "correction": in_experts(has_score_correction_bias=False),
            "score": in_experts(score=ExpertScore.SOFTMAX, has_score_correction_bias=False),
            "shares": in_experts(norm_topk_prob=False),
        },
    ),
    Case(
        name="lfm2-moe-without-corrections",
        family="lfm2_moe",
        settings=LFM2_MOE
        | {
            "use_expert_bias": False,
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.5,
            "num_dense_layers": 0,
            "conv_bias": True,
        },
        forgotten={"scale of shares": in_experts(share_scale=1.0)},
        has_gguf=False,
    ),
    Case(
        name="granite-4-h",
        family="granitemoehybrid",
        settings=GRANITE,
        forgotten={
            "attention scale": in_attention(scale=24**-0.5),
            "residual scale": in_layers(residual_scale=1.0),
            "embedding scale": lambda config: replace(config, embedding_scale=1.0),
            "logit scale": lambda config: replace(config, logit_scale=1.0),
            "gate before the norm": in_recurrences(norm_before_gate=True),
        },
    ),
    Case(
        name="granite-4-h-experts-groups",
        family="granitemoehybrid",
        settings=GRANITE_EXPERTS | {"mamba_n_groups": 2, "tie_word_embeddings": False},
        forgotten={
            "shared": in_experts(shared=None),
            "shares": in_experts(norm_topk_prob=False),
            "groups of the norm": in_recurrences(norm_groups=1),
        },
    ),
    Case(
        name="granite-4-h-rope-biases",
        family="granitemoehybrid",
        settings=GRANITE
        | {
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
            "attention_bias": True,
            "mamba_conv_bias": False,
            "mamba_expand": 3,
            "mamba_d_head": "auto",
            "mamba_n_heads": 6,
        },
        forgotten={
            "rope": in_attention(rope=None),
            "biases": in_recurrences(has_bias=False),
        },
        has_gguf=False,
    ),
    Case(
        name="granite-4-h-limited-steps",
        family="granitemoehybrid",
        settings=GRANITE | {"time_step_limit": (0.2, 0.6), "layer_types": ["mamba"] * 4},
        forgotten={
            "least step": in_recurrences(least_step=0.0),
            "largest step": in_recurrences(largest_step=None),
        },
        has_gguf=False,
    ),
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], RandomModel]:
    def make(case: Case, directory: Path) -> RandomModel:
        return make_hybrid_model(case.family, case.settings, directory, seed=11)

    return made_once(tmp_path_factory, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_at_every_position(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(100)
    actual = logits_of_files(model.directory, tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cuts_change_no_bit(case: Case, models: Callable[[Case], RandomModel]) -> None:
    directory, tokens = models(case).directory, random_tokens(20)
    whole = logits_of_files(directory, tokens)
    num_layers = models(case).config["num_hidden_layers"]
    for boundaries in (*([layer] for layer in range(num_layers + 1)), range(num_layers)):
        cut = logits_of_files(directory, tokens, boundaries=tuple(boundaries))
        assert np.array_equal(cut, whole), tuple(boundaries)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_native_engine(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(70, seed=4)
    actual = logits_of_files(model.directory, tokens, engine_factory=native_engine)
    limit = native_error_limit(num_layers=model.config["num_hidden_layers"], is_quantized=False)
    assert_mostly_close(actual, torch_logits(model, tokens), limit=limit)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_native_bits_depend_on_neither_chunks_nor_cuts_nor_what_else_runs(
    case: Case, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(40)
    config = describe_model(str(model.directory)).config
    source = StateDictSource(model.state)
    with Stages(config, source, num_sequences=3, engine_factory=native_engine) as stages:
        one_by_one = stages.logits_at_all_positions(tokens)
        for split in range(1, len(tokens)):
            first, other = stages.logits(
                stages.slice(1, tokens[:split]), stages.slice(2, tokens[split:])
            )
            assert np.array_equal(first, one_by_one[split - 1]), split
            last = stages.logits(
                stages.slice(2, tokens[::-1][:9]), stages.slice(1, tokens[split:], split)
            )[1]
            assert np.array_equal(last, one_by_one[-1]), split
            assert not np.array_equal(other, last)  # which has forgotten nothing
    boundaries = [1, config.num_layers - 1]
    with Stages(config, source, boundaries=boundaries, engine_factory=native_engine) as stages:
        assert np.array_equal(stages.logits_at_all_positions(tokens), one_by_one)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prompts_split_at_every_place(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(40)
    config = describe_model(str(model.directory)).config
    expected = torch_logits(model, tokens)
    with Stages(config, StateDictSource(model.state), num_sequences=2) as stages:
        for split in range(1, len(tokens)):
            stages.logits(stages.slice(1, tokens[:split][::-1]))  # another sequence meanwhile
            first = stages.logits(stages.slice(0, tokens[:split]))
            last = stages.logits(stages.slice(0, tokens[split:], split))
            actual = np.concatenate([first, last])
            assert_logits_agree(actual, expected[[split - 1, -1]], tolerance=TOLERANCE)


@pytest.mark.parametrize("case", [case for case in CASES if case.has_gguf], ids=str)
def test_gguf_files_give_the_same_logits(
    case: Case, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_hybrid_gguf(path, model)
    assert describe_model(str(path)).files.kind is FileKind.GGUF
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)

    by_native = logits_of_files(path, tokens, engine_factory=native_engine)
    limit = native_error_limit(num_layers=model.config["num_hidden_layers"], is_quantized=False)
    assert_mostly_close(by_native, expected, limit=limit)


@pytest.mark.parametrize("name", ["lfm2", "lfm2-moe", "granite-4-h"])
def test_files_in_bf16(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    (case,) = (case for case in CASES if case.name == name)
    model = make_hybrid_model(case.family, case.settings, tmp_path / "f32", seed=11)
    model.torch_model.bfloat16().save_pretrained(tmp_path)
    options: dict[str, Any] = {"dtype": "float32", "attn_implementation": "eager"}
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path, **options).eval()
    tokens = random_tokens(50)
    expected = torch_logits(replace(model, torch_model=rounded), tokens)
    assert_logits_agree(logits_of_files(tmp_path, tokens), expected, tolerance=TOLERANCE)


def test_the_text_part_of_a_model_that_also_sees(tmp_path: Path) -> None:
    model = make_hybrid_model("lfm2", LFM2, tmp_path / "text", seed=11)
    tensors = {
        name.replace("model.", "model.language_model."): values
        for name, values in model.state.items()
    }
    tensors["model.vision_tower.embeddings.weight"] = np.ones((4, 4), np.float32)
    tensors["model.multi_modal_projector.linear_1.weight"] = np.ones((4, 4), np.float32)
    save_file(tensors, tmp_path / "model.safetensors")
    config = {
        "architectures": ["Lfm2VlForConditionalGeneration"],
        "model_type": "lfm2_vl",
        "text_config": {**model.config, "architectures": None},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert describe_model(str(tmp_path)).skipped == ("a vision tower",)
    tokens = random_tokens(30)
    actual = logits_of_files(tmp_path, tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize(("case", "what"), forgotten_in(CASES))
def test_a_forgotten_feature_would_show(
    case: Case, what: str, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(60)
    actual = logits_forgetting(model, case.forgotten[what], tokens)
    PROOFS.noted.clear()  # what is shown here is not what a family's models need
    assert np.abs(actual - torch_logits(model, tokens)[-1]).max() > 100 * TOLERANCE
