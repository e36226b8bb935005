"""Mamba-2, Nemotron-H and Falcon-H1 against transformers, from safetensors and from GGUF files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.engines.parity import assert_logits_agree, assert_mostly_close, native_error_limit
from support.engines.parity_cases import (
    Case,
    case_named,
    forgotten_in,
    logits_forgetting,
    logits_of_files,
    made_once,
)
from support.engines.stages import Stages, native_engine
from support.models.changes import (
    Change,
    in_attention,
    in_experts,
    in_layers,
    in_mlps,
    in_recurrences,
)
from support.models.mamba_models import make_mamba_model, write_mamba_gguf
from support.models.random_models import RandomModel, random_tokens, torch_logits
from support.models.state_dict_source import StateDictSource

from potluck.catalog import describe_model
from potluck.models.names import FileKind
from potluck.types.model import MambaScales
from potluck.types.program import ExpertScore

TOLERANCE = 1e-4
Q8_0 = gguf.GGMLQuantizationType.Q8_0


# Chunks of transformers' scan are shorter than the prompts here.
MAMBA2: dict[str, Any] = {
    "num_heads": 8,
    "head_dim": 24,
    "n_groups": 2,
    "state_size": 16,
    "chunk_size": 16,
}
MIXER: dict[str, Any] = {
    "num_hidden_layers": None,
    "head_dim": 24,
    "mamba_num_heads": 8,
    "mamba_head_dim": 40,
    "n_groups": 4,
    "ssm_state_size": 16,
    "chunk_size": 16,
}
NEMOTRON_H: dict[str, Any] = MIXER | {"hybrid_override_pattern": "M-M*-M"}
NEMOTRON_3: dict[str, Any] = MIXER | {
    "hybrid_override_pattern": "MEM*E",
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 64,
    "routed_scaling_factor": 2.5,
}
FALCON_H1: dict[str, Any] = {
    "head_dim": 32,
    "mamba_d_ssm": 144,
    "mamba_n_heads": 6,
    "mamba_d_state": 16,
    "mamba_chunk_size": 16,
    "mamba_norm_before_gate": False,
    "attention_in_multiplier": 1.3,
    "attention_out_multiplier": 0.9375,
    "embedding_multiplier": 5.65,
    "key_multiplier": 0.39,
    "lm_head_multiplier": 0.7,
    "mlp_multipliers": [0.88, 0.58],
    "ssm_in_multiplier": 1.25,
    "ssm_multipliers": [0.35, 0.25, 0.4, 0.5, 0.3],
    "ssm_out_multiplier": 0.6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}
NO_SCALES = MambaScales(gate=1.0, x=1.0, b=1.0, c=1.0, step=1.0)


def without_scale(part: str) -> Change:
    """Forget the factor of one part of the mixers' input projections."""

    def changed(config: Any) -> Any:
        scales = config.layers[0].recurrence.scales
        return in_recurrences(scales=replace(scales, **{part: 1.0}))(config)

    return changed


CASES: tuple[Case, ...] = (
    Case(
        name="mamba-codestral",
        family="mamba2",
        settings=MAMBA2,
        forgotten={
            "groups of the norm": in_recurrences(norm_groups=1),
            "gate before the norm": in_recurrences(norm_before_gate=True),
            "convolution's bias": in_recurrences(has_conv_bias=False),
        },
    ),
    Case(
        name="mamba-2-one-group-tied",
        family="mamba2",
        settings=MAMBA2 | {"n_groups": 1, "tie_word_embeddings": True},
    ),
    Case(
        name="mamba-2-biases-limited-steps",
        family="mamba2",
        settings=MAMBA2
        | {
            "use_bias": True,
            "use_conv_bias": False,
            "time_step_limit": (0.2, 0.6),
            "expand": 3,
            "head_dim": 36,
            "layer_norm_epsilon": 0.01,
            "conv_kernel": 3,
        },
        forgotten={
            "biases": in_recurrences(has_bias=False),
            "least step": in_recurrences(least_step=0.0),
            "largest step": in_recurrences(largest_step=None),
        },
        has_gguf=False,
    ),
    Case(
        name="nemotron-h",
        family="nemotron_h",
        settings=NEMOTRON_H,
        forgotten={
            "attention": in_layers(attention=None),
            "groups of the norm": in_recurrences(norm_groups=1),
        },
    ),
    Case(
        name="nemotron-h-biases",
        family="nemotron_h",
        settings=NEMOTRON_H
        | {
            "mlp_bias": True,
            "use_bias": True,
            "use_conv_bias": False,
            "n_groups": 1,
            "num_key_value_heads": 4,
            "layer_norm_epsilon": 0.01,
            "time_step_limit": (0.2, 0.6),
        },
        forgotten={
            "biases": in_mlps(has_bias=False),
            "largest step": in_recurrences(largest_step=None),
        },
        has_gguf=False,
    ),
    Case(
        name="nemotron-3-nano",
        family="nemotron_h",
        settings=NEMOTRON_3,
        forgotten={
            "correction": in_experts(has_score_correction_bias=False),
            "score": in_experts(score=ExpertScore.SOFTMAX),
            "scale of shares": in_experts(share_scale=1.0),
            "shared": in_experts(shared=None),
        },
    ),
    Case(
        name="nemotron-3-groups-not-normalized-mlp",
        family="nemotron_h",
        settings=NEMOTRON_3
        | {
            "hybrid_override_pattern": "*EM-ME",
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "mlp_bias": True,
        },
        forgotten={
            "groups": in_experts(num_groups=1, num_groups_used=1),
            "shares": in_experts(norm_topk_prob=True),
        },
        has_gguf=False,
    ),
    Case(
        name="nemotron-3-super",
        family="nemotron_h",
        settings=NEMOTRON_3 | {"moe_latent_size": 32, "num_experts_per_tok": 4},
    ),
    Case(
        name="nemotron-3-no-attention",
        family="nemotron_h",
        settings=NEMOTRON_3 | {"hybrid_override_pattern": "MEM"},
    ),
    Case(
        name="falcon-h1",
        family="falcon_h1",
        settings=FALCON_H1,
        forgotten={
            "embedding scale": lambda config: replace(config, embedding_scale=1.0),
            "logit scale": lambda config: replace(config, logit_scale=1.0),
            "scale of keys": in_attention(key_scale=1.0),
            "scale of scores": in_attention(scale=32**-0.5),
            "scale of attention": in_attention(output_scale=1.0),
            "scale of mixers": in_recurrences(output_scale=1.0),
            "scale of gates": in_mlps(gate_scale=1.0),
            "scale of MLPs": in_mlps(output_scale=1.0),
            "rope": in_attention(rope=None),
            **{f"scale of {part}": without_scale(part) for part in ("gate", "x", "b", "c", "step")},
        },
    ),
    Case(
        name="falcon-h1-34b",
        family="falcon_h1",
        settings=FALCON_H1 | {"mamba_rms_norm": True, "mamba_n_groups": 2},
        forgotten={
            "norm": in_recurrences(norm_groups=None),
            "gate before the norm": in_recurrences(norm_before_gate=True),
            "groups of the norm": in_recurrences(norm_groups=1),
        },
    ),
    Case(
        name="falcon-h1-norm-first-biases-tied",
        family="falcon_h1",
        settings=FALCON_H1
        | {
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": True,
            "mamba_d_ssm": None,
            "mamba_d_head": "auto",
            "mamba_conv_bias": False,
            "mamba_proj_bias": True,
            "projectors_bias": True,
            "attention_bias": True,
            "attention_in_multiplier": 1.0,
            "ssm_in_multiplier": 1.0,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "time_step_limit": (0.2, 0.6),
        },
        forgotten={
            "biases": in_recurrences(has_bias=False),
            "bias of the output": in_recurrences(has_output_bias=False),
            "norm first": in_recurrences(norm_before_gate=False),
        },
        has_gguf=False,
    ),
    Case(
        name="falcon-h1-bias-of-mixers-only",
        family="falcon_h1",
        settings=FALCON_H1 | {"mamba_proj_bias": True, "ssm_in_multiplier": 1.0},
        has_gguf=False,
    ),
    Case(
        name="falcon-h1-without-multipliers",
        family="falcon_h1",
        settings={
            key: value for key, value in FALCON_H1.items() if not key.endswith(("plier", "pliers"))
        },
    ),
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], RandomModel]:
    def make(case: Case, directory: Path) -> RandomModel:
        return make_mamba_model(case.family, case.settings, directory, seed=11)

    return made_once(tmp_path_factory, make)


@pytest.mark.parametrize("boundaries", [[], [1, 2]], ids=["whole", "cut"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_at_every_position(
    case: Case, boundaries: list[int], models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(100)
    actual = logits_of_files(model.directory, tokens, boundaries=boundaries)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_prompts_split_at_every_place(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(24)
    config = describe_model(str(model.directory)).config
    expected = torch_logits(model, tokens)
    with Stages(config, StateDictSource(model.state), num_sequences=2) as stages:
        for split in range(1, len(tokens)):
            stages.logits(stages.slice(1, tokens[:split][::-1]))  # another sequence meanwhile
            first = stages.logits(stages.slice(0, tokens[:split]))
            last = stages.logits(stages.slice(0, tokens[split:], split))
            actual = np.concatenate([first, last])
            assert_logits_agree(actual, expected[[split - 1, -1]], tolerance=TOLERANCE)


def native_limit(model: RandomModel) -> float:
    """Of the native engine's errors, for so many layers."""
    num_layers = describe_model(str(model.directory)).config.num_layers
    return native_error_limit(num_layers=num_layers, is_quantized=False)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_native_engine(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(70, seed=4)
    actual = logits_of_files(model.directory, tokens, engine_factory=native_engine)
    assert_mostly_close(actual, torch_logits(model, tokens), limit=native_limit(model))


@pytest.mark.parametrize("name", ["mamba-codestral", "nemotron-3-super", "falcon-h1-34b"])
def test_native_bits_depend_on_neither_chunks_nor_cuts(
    name: str, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case_named(CASES, name)), random_tokens(50)
    config = describe_model(str(model.directory)).config
    source = StateDictSource(model.state)
    with Stages(config, source, engine_factory=native_engine) as stages:
        expected = stages.logits_at_all_positions(tokens)
    for boundaries in ([1], [0, 1, 2, 3]):
        options: dict[str, Any] = {"boundaries": boundaries, "engine_factory": native_engine}
        with Stages(config, source, **options) as stages:
            for split in (1, 3, 16, 31, 49):
                first = stages.logits(stages.slice(0, tokens[:split]))
                last = stages.logits(stages.slice(0, tokens[split:], split))
                actual = np.concatenate([first, last])
                assert np.array_equal(actual, expected[[split - 1, -1]])


@pytest.mark.parametrize("case", [case for case in CASES if case.has_gguf], ids=str)
def test_gguf_files_give_the_same_logits(
    case: Case, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_mamba_gguf(path, model)
    assert describe_model(str(path)).files.kind is FileKind.GGUF
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)
    by_native = logits_of_files(path, tokens, engine_factory=native_engine)
    assert_mostly_close(by_native, expected, limit=native_limit(model))


@pytest.mark.parametrize("name", ["mamba-codestral", "nemotron-3-super", "falcon-h1"])
def test_quantized_matrices_in_gguf_files(
    name: str, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case_named(CASES, name)), random_tokens(60)
    formats = dict.fromkeys(("ssm_in", "ssm_out", "ffn_up", "attn_k"), Q8_0)
    for are_rounded_only in (False, True):
        path = tmp_path / f"{are_rounded_only}.gguf"
        write_mamba_gguf(path, model, formats=formats, are_rounded_only=are_rounded_only)
    actual = logits_of_files(tmp_path / "False.gguf", tokens, boundaries=[1])
    expected = logits_of_files(tmp_path / "True.gguf", tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)


@pytest.mark.parametrize(("case", "what"), forgotten_in(CASES))
def test_a_forgotten_feature_would_show(
    case: Case, what: str, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(60)
    actual = logits_forgetting(model, case.forgotten[what], tokens)
    assert np.abs(actual - torch_logits(model, tokens)[-1]).max() > 100 * TOLERANCE
