"""The reference engine against transformers, on small random models of every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.parity import assert_logits_agree, decided_share
from support.engines.stages import Stages
from support.models.configs import with_experts, with_windows
from support.models.random_models import (
    LLAMA3_ROPE,
    RandomModel,
    make_random_model,
    random_tokens,
    torch_greedy,
    torch_logits,
)
from support.models.state_dict_source import StateDictSource

from potluck.models.registry import config_from_hugging_face
from potluck.types.model import ExpertsConfig, ModelConfig, RopeConfig

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and what a configuration that forgot its feature would say."""

    name: str
    family: str
    settings: Mapping[str, object] = field(default_factory=dict)
    forget: Callable[[ModelConfig], ModelConfig] | None = None

    def __str__(self) -> str:
        return self.name


def forget_windows(config: ModelConfig) -> ModelConfig:
    return with_windows(config, (None,) * config.num_layers)


def forget_scaling(config: ModelConfig) -> ModelConfig:
    (rope,) = config.ropes
    return replace(config, ropes=(RopeConfig(theta=500.0, rotary_dim=rope.rotary_dim),))


EXPERTS: dict[str, Any] = {
    "head_dim": 24,
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}
WANTED: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_token": 3,
    "width": 48,
    "norm_topk_prob": True,
}

CASES = (
    Case(name="llama", family="llama"),
    Case(name="llama-tied", family="llama", settings={"tie_word_embeddings": True}),
    Case(name="llama-biases", family="llama", settings={"attention_bias": True, "mlp_bias": True}),
    Case(
        name="llama-3-rope",
        family="llama",
        settings={"rope_parameters": LLAMA3_ROPE},
        forget=forget_scaling,
    ),
    Case(
        name="llama-linear-rope",
        family="llama",
        settings={"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
        forget=forget_scaling,
    ),
    Case(name="llama-heads-of-8", family="llama", settings={"head_dim": 8}),
    Case(
        name="llama-heads-of-64",
        family="llama",
        settings={"head_dim": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-2},
        forget=lambda config: replace(config, norm_epsilon=1e-6),
    ),
    Case(
        name="mistral-window",
        family="mistral",
        settings={"sliding_window": 9},
        forget=forget_windows,
    ),
    Case(name="mistral-full", family="mistral", settings={"sliding_window": None}),
    Case(name="qwen2", family="qwen2", settings={"num_key_value_heads": 1}),
    Case(
        name="qwen2-window-tied",
        family="qwen2",
        settings={
            "tie_word_embeddings": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        forget=lambda config: with_windows(config, (9,) * 3),
    ),
    Case(
        name="qwen3-heads-of-80",
        family="qwen3",
        settings={"head_dim": 80, "num_key_value_heads": 1},
        forget=forget_scaling,
    ),
    Case(
        name="qwen3-moe",
        family="qwen3_moe",
        settings=EXPERTS,
        forget=lambda config: with_experts(
            config, ExpertsConfig(**(WANTED | {"num_experts_per_token": 2}))
        ),
    ),
    Case(
        name="qwen3-moe-not-normalized",
        family="qwen3_moe",
        settings=EXPERTS | {"norm_topk_prob": False, "num_key_value_heads": 1},
        forget=lambda config: with_experts(config, ExpertsConfig(**WANTED)),
    ),
    Case(
        name="qwen3-moe-in-some-layers-window",
        family="qwen3_moe",
        settings=EXPERTS
        | {
            "num_hidden_layers": 4,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [1],
            "use_sliding_window": True,
            "sliding_window": 9,
        },
        forget=forget_windows,
    ),
    Case(
        name="qwen3-layer-types-tied-biases",
        family="qwen3",
        settings={
            "head_dim": 24,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        forget=forget_windows,
    ),
)


@pytest.fixture(params=CASES, ids=str, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    chosen = request.param
    assert isinstance(chosen, Case)
    return chosen


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return make_random_model(case.family, case.settings, tmp_path_factory.mktemp("model"), seed=11)


@pytest.fixture
def config(model: RandomModel) -> ModelConfig:
    return config_from_hugging_face(model.config)


def test_logits_at_every_position(model: RandomModel, config: ModelConfig) -> None:
    tokens = random_tokens(100)
    with Stages(config, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


def test_greedy_text(model: RandomModel, config: ModelConfig) -> None:
    prompt = random_tokens(37, seed=2)
    expected, logits = torch_greedy(model, prompt, 64)
    assert decided_share(logits, TOLERANCE) >= 0.9
    assert len(set(expected)) >= 10, "a text that repeats itself decides little"
    with Stages(config, StateDictSource(model.state), boundaries=[1]) as stages:
        assert stages.greedy(prompt, 64) == expected


@pytest.mark.parametrize("case", [case for case in CASES if case.forget], indirect=True, ids=str)
def test_a_forgotten_feature_would_show(
    case: Case, model: RandomModel, config: ModelConfig
) -> None:
    tokens = random_tokens(60)
    assert case.forget is not None
    forgetful = case.forget(config)
    with Stages(forgetful, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert np.abs(actual - torch_logits(model, tokens)).max() > 100 * TOLERANCE


def test_several_files_hold_the_same_tensors(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    model = make_random_model("llama", {}, tmp_path, max_file_size="40KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    state = {name: values for file in files for name, values in load_file(file).items()}
    config = config_from_hugging_face(model.config)
    tokens = random_tokens(20)
    with Stages(config, StateDictSource(state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)
