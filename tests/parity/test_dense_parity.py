"""Dense families against transformers, from safetensors and from GGUF files, in F32.

GGUF files are as llama.cpp's converter writes them of the same configuration. The reference engine
gives every position's logits, and so does the native one, which keeps keys and values in f16.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.parity import assert_logits_agree, native_error_limit, rms
from support.engines.parity_cases import Case
from support.engines.stages import Stages, native_engine
from support.models.changes import Change, each_layer, in_attention, in_ropes
from support.models.converted_models import make_model_that_sees, write_converted_gguf
from support.models.random_models import (
    LLAMA3_ROPE,
    RandomModel,
    make_random_model,
    random_tokens,
    torch_logits,
)
from support.models.state_dict_source import StateDictSource

from potluck.formats.gguf import open_gguf
from potluck.models.names import FileKind
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    with_stored_head,
)
from potluck.types.model import (
    HeadNorm,
    ModelConfig,
    NormKind,
    NormPlaces,
    RopeConfig,
    RopeScaling,
)

TOLERANCE = 1e-4


def in_model(**changes: Any) -> Change:
    """The change of the model itself."""
    return lambda config: replace(config, **changes)


def all_turn(config: ModelConfig) -> ModelConfig:
    """Layers without rope have one, and so has the model."""
    head_dim = config.layers[0].grouped_attention.head_dim
    ropes = config.ropes or (RopeConfig(theta=10_000.0, rotary_dim=head_dim),)
    return replace(in_attention(rope=0)(config), ropes=ropes)


YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
}
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 500.0,
    "short_factor": [1.0 + 0.1 * pair for pair in range(9)],
    "long_factor": [2.0 + 0.5 * pair for pair in range(9)],
}
PHI4_MINI: dict[str, Any] = {
    "tie_word_embeddings": True,
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 32,
    "rope_parameters": LONGROPE,
}
MINISTRAL3: dict[str, Any] = {
    "head_dim": 24,
    "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.2},
}
MULTIPLIERS: dict[str, Any] = {
    "embedding_multiplier": 12.0,
    "logits_scaling": 8.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
}
FORGOTTEN_MULTIPLIERS: dict[str, Change] = {
    "embedding": in_model(embedding_scale=1.0),
    "logits": in_model(logit_scale=1.0),
    "residual": each_layer(lambda layer: replace(layer, residual_scale=1.0)),
    "attention": in_attention(scale=24**-0.5),
}
GRANITE4: dict[str, Any] = MULTIPLIERS | {
    "logits_scaling": 4.0,
    "num_local_experts": 0,
    "num_experts_per_tok": 0,
    "shared_intermediate_size": 160,
    "layer_types": ["attention"] * 3,
    "tie_word_embeddings": True,
    "mamba_n_heads": 8,
    "mamba_d_head": 24,
}
SLIDING = {"num_hidden_layers": 4, "sliding_window": 9}

CASES: tuple[Case, ...] = (
    Case(name="phi-3-window", family="phi3", settings={"sliding_window": 9}),
    Case(name="phi-4", family="phi3", settings={"sliding_window": None, "num_key_value_heads": 1}),
    Case(
        name="phi-4-mini",
        family="phi3",
        settings=PHI4_MINI,
        forgotten={
            "scaling": in_ropes(scaling=RopeScaling.NONE),
            "attention factor": in_ropes(attention_factor=1.0),
        },
    ),
    Case(
        name="phi-4-mini-within-trained-context",
        family="phi3",
        settings=PHI4_MINI
        | {"original_max_position_embeddings": 256, "max_position_embeddings": 512},
        forgotten={"short": in_ropes(original_context_tokens=32)},
    ),
    Case(
        name="ministral-3",
        family="ministral3",
        settings=MINISTRAL3,
        forgotten={
            "query scale": in_attention(query_rope=None),
            "yarn": in_ropes(scaling=RopeScaling.NONE),
            "scale of yarn": in_ropes(attention_factor=1.2),
        },
    ),
    Case(
        name="smollm-3",
        family="smollm3",
        settings={"num_hidden_layers": 5, "rope_parameters": {"rope_theta": 500.0}},
        forgotten={"no rope": all_turn},
    ),
    Case(
        name="smollm-3-windows",
        family="smollm3",
        settings=SLIDING
        | {"use_sliding_window": True, "no_rope_layers": [1, 0, 1, 0], "attention_bias": True},
        forgotten={"no rope": all_turn, "windows": in_attention(window=None)},
        has_gguf=False,
    ),
    Case(
        name="granite-3",
        family="granite",
        settings=MULTIPLIERS,
        forgotten=FORGOTTEN_MULTIPLIERS,
    ),
    Case(
        name="granite-3-biases",
        family="granite",
        settings=MULTIPLIERS | {"attention_bias": True, "mlp_bias": True},
    ),
    Case(
        name="granite-4",
        family="granitemoehybrid",
        settings=GRANITE4 | {"position_embedding_type": "rope"},
        forgotten=FORGOTTEN_MULTIPLIERS,
    ),
    Case(
        name="granite-4-without-rope",
        family="granitemoehybrid",
        settings=GRANITE4 | {"position_embedding_type": None},
        forgotten={"no rope": all_turn},
    ),
    Case(
        name="glm-4",
        family="glm4",
        settings={"head_dim": 32, "attention_bias": False},
        forgotten={
            "norms after": each_layer(lambda layer: replace(layer, norms=NormPlaces.PRE)),
        },
    ),
    Case(
        name="glm-z1-biases",
        family="glm4",
        settings={"head_dim": 24, "rope_parameters": {"rope_theta": 500.0}},
    ),
    Case(
        name="olmo-2",
        family="olmo2",
        settings={"num_key_value_heads": 4},
        forgotten={"norm of the width": in_attention(head_norm=HeadNorm.NONE)},
    ),
    Case(
        name="exaone-4-32b",
        family="exaone4",
        settings=SLIDING | {"rope_parameters": LLAMA3_ROPE},
        forgotten={
            "no rope": all_turn,
            "windows": in_attention(window=None),
            "norm of heads": in_attention(head_norm=HeadNorm.NONE),
        },
    ),
    Case(
        name="command-r7b",
        family="cohere2",
        settings=SLIDING | {"num_hidden_layers": 5, "tie_word_embeddings": True},
        forgotten={
            "no rope": all_turn,
            "windows": in_attention(window=None),
            "logit scale": in_model(logit_scale=1.0),
            "means": in_model(norm=NormKind.RMS),
        },
    ),
    Case(
        name="command-biases",
        family="cohere2",
        settings=SLIDING
        | {
            "attention_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "logit_scale": 0.25,
        },
        has_gguf=False,
    ),
    Case(name="seed-oss", family="seed_oss", settings={"head_dim": 32}),
    Case(
        name="ernie-4.5",
        family="ernie4_5",
        settings={"head_dim": 32, "tie_word_embeddings": True},
    ),
    Case(
        name="hunyuan",
        family="hunyuan_v1_dense",
        settings={
            "head_dim": 24,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 1000.0,
                "factor": 1.0,
                "rope_theta": 10_000.0,
            },
        },
        forgotten={
            "late norms": in_attention(norms_after_rope=False),
            "stretched": in_ropes(theta=10_000.0),
        },
    ),
)


def make_model(case: Case, directory: Path, *, seed: int) -> RandomModel:
    settings = {"pad_token_id": None, "eos_token_id": 2, "bos_token_id": 1, **case.settings}
    return make_random_model(case.family, settings, directory, seed=seed)


@pytest.fixture(params=CASES, ids=str, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    chosen = request.param
    assert isinstance(chosen, Case)
    return chosen


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return make_model(case, tmp_path_factory.mktemp("model"), seed=11)


@pytest.fixture
def config(model: RandomModel) -> ModelConfig:
    config = with_stored_head(
        config_from_hugging_face(model.config), model.state, FileKind.HUGGING_FACE
    )
    refuse_unread_tensors(config, model.state, FileKind.HUGGING_FACE)
    return config


def test_logits_at_every_position(model: RandomModel, config: ModelConfig) -> None:
    tokens = random_tokens(80)
    with Stages(config, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


def test_prompt_in_stages(model: RandomModel, config: ModelConfig) -> None:
    prompt = random_tokens(40, seed=2)
    boundaries = range(1, config.num_layers)
    with Stages(config, StateDictSource(model.state), boundaries=boundaries) as stages:
        actual = stages.logits(stages.slice(0, prompt))
    assert np.abs(actual[0] - torch_logits(model, prompt)[-1]).max() <= TOLERANCE


def test_a_forgotten_feature_would_show(
    case: Case, model: RandomModel, config: ModelConfig
) -> None:
    tokens = random_tokens(80)
    expected = torch_logits(model, tokens)
    for name, change in case.forgotten.items():
        with Stages(change(config), StateDictSource(model.state)) as stages:
            actual = stages.logits_at_all_positions(tokens)
        assert np.abs(actual - expected).max() > 100 * TOLERANCE * min(1, rms(expected)), name


def test_native_engine(model: RandomModel, config: ModelConfig) -> None:
    tokens = random_tokens(60)
    source = StateDictSource(model.state)
    with Stages(config, source, engine_factory=native_engine, num_sequences=1) as stages:
        actual = stages.logits_at_all_positions(tokens)
    expected = torch_logits(model, tokens)
    limit = native_error_limit(num_layers=config.num_layers, is_quantized=False)
    assert rms(actual - expected) <= limit * rms(expected)


@pytest.mark.parametrize("case", [each for each in CASES if each.has_gguf], ids=str)
def test_gguf_file(case: Case, tmp_path: Path) -> None:
    model = make_model(case, tmp_path, seed=12)
    path = tmp_path / "model.gguf"
    write_converted_gguf(path, model)
    tokens = random_tokens(60)
    expected = torch_logits(model, tokens)
    with closing(open_gguf(path)) as source:
        config = config_from_gguf(source.metadata, source, path=str(path))
        refuse_unread_tensors(config, tuple(source.names()), FileKind.GGUF)
        with Stages(config, source, file_kind=FileKind.GGUF) as stages:
            actual = stages.logits_at_all_positions(tokens)
        with Stages(
            config,
            source,
            file_kind=FileKind.GGUF,
            engine_factory=native_engine,
            num_sequences=1,
        ) as stages:
            native = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)
    limit = native_error_limit(num_layers=config.num_layers, is_quantized=False)
    assert rms(native - expected) <= limit * rms(expected)


@pytest.mark.parametrize("family", ["mistral", "ministral3"])
@pytest.mark.parametrize("is_tied", [False, True])
def test_text_part_of_a_model_that_sees(family: str, is_tied: bool, tmp_path: Path) -> None:
    settings = {"model_type": family, "head_dim": 24}
    if family == "ministral3":
        settings |= MINISTRAL3
    model = make_model_that_sees(settings, tmp_path, is_tied=is_tied, seed=13)
    config = with_stored_head(
        config_from_hugging_face(model.config), model.state, FileKind.HUGGING_FACE
    )
    assert config.tied_head == is_tied
    refuse_unread_tensors(config, model.state, FileKind.HUGGING_FACE)
    tokens = random_tokens(60)
    with Stages(config, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    expected = torch_logits(model, tokens)
    assert np.abs(actual - expected).max() <= TOLERANCE * max(1, rms(expected))
