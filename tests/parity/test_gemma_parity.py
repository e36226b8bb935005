"""Gemma 2, 3 and 4 against transformers, from safetensors and from GGUF files, in F32."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines.parity import assert_logits_agree
from support.engines.stages import Stages
from support.models.changes import Change, each_layer, in_attention
from support.models.gemma_models import make_gemma, write_gemma_gguf
from support.models.random_models import RandomModel, random_tokens, torch_logits
from support.models.state_dict_source import StateDictSource

from potluck.formats.gguf import open_gguf
from potluck.models.names import FileKind
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    skipped_parts,
    with_stored_head,
)
from potluck.types.model import ModelConfig

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and what configurations that forgot one of its features would say."""

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wrapper: str | None = None
    forgotten: Mapping[str, Change] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


GEMMA2: dict[str, Any] = {
    "sliding_window": 9,
    "query_pre_attn_scalar": 40,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 1.5,
}
GEMMA3: dict[str, Any] = {
    "sliding_window": 9,
    "query_pre_attn_scalar": 40,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}

CASES: tuple[Case, ...] = (
    Case(
        name="gemma-2",
        family="gemma2",
        settings=GEMMA2,
        forgotten={
            "attention cap": in_attention(softcap=None),
            "logit cap": lambda config: replace(config, logit_softcap=None),
            "window": in_attention(window=None),
            "scale": in_attention(scale=24**-0.5),
            "embedding scale": lambda config: replace(config, embedding_scale=1.0),
        },
    ),
    Case(
        name="gemma-2-without-caps",
        family="gemma2",
        settings=GEMMA2
        | {
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ),
    Case(
        name="gemma-3",
        family="gemma3_text",
        settings=GEMMA3,
        forgotten={
            "linear scaling": lambda config: replace(
                config, ropes=(replace(config.ropes[0], factor=1.0), config.ropes[1])
            ),
            "local rope": in_attention(rope=0),
            "window": in_attention(window=None),
        },
    ),
    Case(
        name="gemma-3-pattern-cap",
        family="gemma3_text",
        settings={
            "num_hidden_layers": 7,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "final_logit_softcapping": 1.5,
        },
    ),
    Case(name="gemma-3-that-sees", family="gemma3_text", wrapper="gemma3", settings=GEMMA3),
)

# Upper layers first have caches of their own, so that each kind has one to share.
GEMMA4: dict[str, Any] = {
    "sliding_window": 9,
    "hidden_size_per_layer_input": 0,
    "global_head_dim": 32,
    "num_global_key_value_heads": 1,
    "attention_k_eq_v": True,
    "final_logit_softcapping": 1.5,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 5000.0,
            "partial_rotary_factor": 0.25,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    },
}
UNIFIED = {key: value for key, value in GEMMA4.items() if key != "hidden_size_per_layer_input"}
EXPERTS: dict[str, Any] = {
    "enable_moe_block": True,
    "num_experts": 7,
    "top_k_experts": 3,
    "moe_intermediate_size": 48,
}
PER_LAYER: dict[str, Any] = {
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": 97,
}
SHARED: dict[str, Any] = {
    "num_hidden_layers": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "attention_k_eq_v": False,
    "num_kv_shared_layers": 3,
    "use_double_wide_mlp": True,
}


def without_turning_pairs(config: ModelConfig) -> ModelConfig:
    """All pairs of full layers turn."""
    full, sliding = config.ropes
    return replace(config, ropes=(replace(full, num_turning_pairs=16), sliding))


def share_the_first_cache(config: ModelConfig) -> ModelConfig:
    """Upper layers read the first cache of their kind, and not the last."""
    layers = tuple(
        replace(layer, attention=replace(layer.grouped_attention, shared_layer=index % 2))
        if layer.grouped_attention.shared_layer is not None
        else layer
        for index, layer in enumerate(config.layers)
    )
    return replace(config, layers=layers)


CASES += (
    Case(
        name="gemma-4",
        family="gemma4_text",
        settings=GEMMA4,
        forgotten={
            "standing pairs": without_turning_pairs,
            "logit cap": lambda config: replace(config, logit_softcap=None),
            "output scale": each_layer(lambda layer: replace(layer, has_output_scale=False)),
            "scale": in_attention(scale=24**-0.5),
            "window": in_attention(window=None),
        },
    ),
    Case(
        name="gemma-4-values",
        family="gemma4_text",
        settings=GEMMA4 | {"attention_k_eq_v": False, "num_hidden_layers": 5, "layer_types": None},
        forgotten={"value norm": in_attention(has_value_norm=False)},
    ),
    Case(
        name="gemma-4-biases",
        family="gemma4_text",
        settings=GEMMA4 | {"attention_bias": True, "tie_word_embeddings": False},
    ),
    Case(
        name="gemma-4-experts",
        family="gemma4_text",
        settings=GEMMA4 | EXPERTS,
    ),
    Case(
        name="gemma-4-shared-per-layer",
        family="gemma4_text",
        settings=GEMMA4 | PER_LAYER | SHARED,
        forgotten={"last of its kind": share_the_first_cache},
    ),
    Case(name="gemma-4-that-sees", family="gemma4_text", wrapper="gemma4", settings=GEMMA4),
    Case(name="gemma-4-unified", family="gemma4_unified_text", settings=UNIFIED),
    Case(
        name="gemma-4-unified-that-sees",
        family="gemma4_unified_text",
        wrapper="gemma4_unified",
        settings=UNIFIED,
    ),
)


@pytest.fixture(params=CASES, ids=str, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    chosen = request.param
    assert isinstance(chosen, Case)
    return chosen


@pytest.fixture(scope="module")
def model(case: Case, tmp_path_factory: pytest.TempPathFactory) -> RandomModel:
    directory = tmp_path_factory.mktemp("model")
    return make_gemma(case.family, case.settings, directory, wrapper=case.wrapper, seed=11)


@pytest.fixture
def config(model: RandomModel) -> ModelConfig:
    config = with_stored_head(
        config_from_hugging_face(model.config), model.state, FileKind.HUGGING_FACE
    )
    refuse_unread_tensors(config, model.state, FileKind.HUGGING_FACE)
    return config


def test_logits_at_every_position(model: RandomModel, config: ModelConfig) -> None:
    tokens = random_tokens(60)
    with Stages(config, StateDictSource(model.state)) as stages:
        actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


def test_prompt_at_once(case: Case, model: RandomModel, config: ModelConfig) -> None:
    prompt = random_tokens(40, seed=2)
    boundaries = [layer for layer in range(1, config.num_layers) if config.can_cut_before(layer)]
    with Stages(config, StateDictSource(model.state), boundaries=boundaries) as stages:
        actual = stages.logits(stages.slice(0, prompt))
    assert np.abs(actual[0] - torch_logits(model, prompt)[-1]).max() <= TOLERANCE


def test_a_forgotten_feature_would_show(
    case: Case, model: RandomModel, config: ModelConfig
) -> None:
    tokens = random_tokens(40)
    expected = torch_logits(model, tokens)
    for name, change in case.forgotten.items():
        with Stages(change(config), StateDictSource(model.state)) as stages:
            actual = stages.logits_at_all_positions(tokens)
        assert np.abs(actual - expected).max() > 100 * TOLERANCE, name


def test_parts_that_are_not_text_are_skipped(
    case: Case, model: RandomModel, config: ModelConfig
) -> None:
    skipped = skipped_parts(config, model.state, FileKind.HUGGING_FACE)
    assert skipped == (("a vision tower",) if case.wrapper else ())


# What GGUF files cannot say: biases, and a scale that is not the head size's.
GGUF_CASES = tuple(
    replace(case, settings={**case.settings, "query_pre_attn_scalar": 24})
    for case in CASES
    if "attention_bias" not in case.settings
)


@pytest.mark.parametrize("case", GGUF_CASES, ids=str)
def test_gguf_file(case: Case, tmp_path: Path) -> None:
    model = make_gemma(case.family, case.settings, tmp_path, wrapper=case.wrapper, seed=12)
    path = tmp_path / "model.gguf"
    write_gemma_gguf(path, model)
    tokens = random_tokens(60)
    with closing(open_gguf(path)) as source:
        config = config_from_gguf(source.metadata, source, path=str(path))
        refuse_unread_tensors(config, tuple(source.names()), FileKind.GGUF)
        with Stages(config, source, file_kind=FileKind.GGUF) as stages:
            actual = stages.logits_at_all_positions(tokens)
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)
