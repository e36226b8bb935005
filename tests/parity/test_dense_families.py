"""Dense families against transformers, from safetensors and from GGUF files, in F32."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.engines.parity import assert_logits_agree
from support.engines.stages import Stages, native_engine
from support.models.dense_models import Rewrite, same, write_dense_gguf
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
from potluck.types.model import ModelConfig

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model of ``family`` with ``settings``; its GGUF file's architecture and own metadata.

    Without an ``architecture`` there are no such GGUF files, or llama.cpp computes something else.
    """

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rewrite: Rewrite = same

    def __str__(self) -> str:
        return self.name


YARN: Mapping[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES = (
    Case(
        name="seed-oss",
        family="seed_oss",
        settings={"attention_bias": True, "attention_out_bias": False, "head_dim": 24},
        architecture="seed_oss",
    ),
    Case(
        name="seed-oss-output-bias",
        family="seed_oss",
        settings={"attention_out_bias": True, "mlp_bias": True, "head_dim": 24},
    ),
    Case(
        name="hunyuan",
        family="hunyuan_v1_dense",
        settings={"head_dim": 24},
        architecture="hunyuan-dense",
    ),
    Case(
        name="hunyuan-alpha",
        family="hunyuan_v1_dense",
        settings={
            "head_dim": 24,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 20.0,
                "factor": 1.0,
                "rope_theta": 500.0,
            },
        },
        architecture="hunyuan-dense",
        metadata={
            "rope.freq_base": 500.0 * 20.0 ** (24 / 22),
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            "rope.scaling.original_context_length": 256 * 1024,
        },
    ),
    Case(
        name="ernie-4.5",
        family="ernie4_5",
        settings={"head_dim": 24, "tie_word_embeddings": True},
        architecture="ernie4_5",
    ),
    Case(
        name="ernie-4.5-biases",
        family="ernie4_5",
        settings={"head_dim": 24, "use_bias": True, "tie_word_embeddings": False},
        architecture="ernie4_5",
    ),
    Case(
        name="cohere2",
        family="cohere2",
        settings={
            "num_hidden_layers": 5,
            "sliding_window": 9,
            "logit_scale": 2.0,
            "tie_word_embeddings": True,
        },
        architecture="cohere2",
        metadata={
            "attention.sliding_window": 9,
            "attention.layer_norm_epsilon": 1e-5,
            "logit_scale": 2.0,
            "rope.scaling.type": "none",
        },
    ),
    Case(
        name="exaone-4",
        family="exaone4",
        settings={"num_hidden_layers": 5, "sliding_window": 9, "head_dim": 24},
        architecture="exaone4",
        metadata={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False, True],
        },
    ),
    Case(
        name="exaone-4-without-windows",
        family="exaone4",
        settings={
            "sliding_window": None,
            "layer_types": ["full_attention"] * 3,
            "num_attention_heads": 6,
            "head_dim": 24,
            "rope_parameters": LLAMA3_ROPE,
        },
    ),
    Case(name="olmo-2", family="olmo2", architecture="olmo2"),
    Case(name="olmo-2-biases", family="olmo2", settings={"attention_bias": True}),
    Case(
        name="olmo-3",
        family="olmo3",
        settings={"num_hidden_layers": 5, "sliding_window": 9},
        architecture="olmo2",
        metadata={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False, True],
            "rope.freq_base": 500_000.0,
        },
    ),
    Case(
        name="olmo-3-yarn",
        family="olmo3",
        settings={
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
                "full_attention": YARN,
            },
        },
        architecture="olmo2",
        metadata={
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": [True, True, True, False],
            "rope.freq_base": 500.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
        },
    ),
    Case(
        name="cohere2-biases-pattern",
        family="cohere2",
        settings={
            "attention_bias": True,
            "sliding_window": 7,
            "logit_scale": 2.0,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        },
    ),
)


@pytest.fixture(params=CASES, ids=str, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    chosen = request.param
    assert isinstance(chosen, Case)
    return chosen


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    return make_random_model(case.family, case.settings, tmp_path_factory.mktemp("model"), seed=3)


def read(model: RandomModel) -> ModelConfig:
    config = with_stored_head(
        config_from_hugging_face(model.config), model.state, FileKind.HUGGING_FACE
    )
    refuse_unread_tensors(config, model.state, FileKind.HUGGING_FACE)
    return config


@pytest.mark.parametrize("boundaries", [[], [1, 2]], ids=["whole", "cut"])
def test_safetensors(model: RandomModel, boundaries: list[int]) -> None:
    tokens = random_tokens(70)
    with Stages(read(model), StateDictSource(model.state), boundaries=boundaries) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


def test_safetensors_in_the_native_engine(model: RandomModel) -> None:
    tokens = random_tokens(70)
    with Stages(read(model), StateDictSource(model.state), engine_factory=native_engine) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=NATIVE_TOLERANCE)


NATIVE_TOLERANCE = 2e-2
"""Keys and values are kept in f16."""


def test_gguf(case: Case, model: RandomModel, tmp_path: Path) -> None:
    if not case.architecture:
        return
    path = tmp_path / "model.gguf"
    write_dense_gguf(path, model, case.architecture, case.metadata, rewrite=case.rewrite)
    tokens = random_tokens(70)
    with closing(open_gguf(path)) as source:
        names = frozenset(source.names())
        config = with_stored_head(
            config_from_gguf(source.metadata, source, path=str(path)), names, FileKind.GGUF
        )
        refuse_unread_tensors(config, names, FileKind.GGUF)
        with Stages(config, source, file_kind=FileKind.GGUF) as stages:
            actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)
