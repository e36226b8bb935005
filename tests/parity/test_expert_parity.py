"""Families with experts against transformers, from safetensors and from GGUF files, in F32."""

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
from support.engines.stages import native_engine
from support.models.changes import in_attention, in_experts, in_layers, in_ropes
from support.models.expert_models import (
    add_layer_that_predicts,
    make_expert_model,
    store_experts_in_mxfp4,
    write_expert_gguf,
)
from support.models.random_models import RandomModel, random_tokens, torch_logits

from potluck.catalog import describe_model
from potluck.models.names import FileKind
from potluck.types.model import HeadNorm
from potluck.types.program import Activation, ExpertScore

TOLERANCE = 1e-4


YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 32,
}
FEW: dict[str, Any] = {"num_local_experts": 7, "num_experts_per_tok": 3}
GPT_OSS: dict[str, Any] = FEW | {
    "head_dim": 24,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "sliding_window": 9,
    "rope_parameters": YARN,
}
GLM: dict[str, Any] = {
    "head_dim": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "use_qk_norm": True,
    "attention_bias": True,
}
QWEN: dict[str, Any] = {
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 80,
}
MINIMAX: dict[str, Any] = FEW | {"head_dim": 24, "rotary_dim": 16}
GRANITE: dict[str, Any] = FEW | {
    "attention_multiplier": 0.1,
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 0.5,
}
# The converter takes the width of what is shared for intermediate_size / num_key_value_heads.
ERNIE: dict[str, Any] = {
    "moe_num_experts": 7,
    "moe_k": 3,
    "moe_intermediate_size": 48,
    "intermediate_size": 192,
}

CASES: tuple[Case, ...] = (
    Case(
        name="gpt-oss",
        family="gpt_oss",
        settings=GPT_OSS,
        forgotten={
            "window": in_attention(window=None),
            "activation": in_experts(activation=Activation.SILU),
            "bounds of YaRN": in_ropes(truncate=True),
            "scale of YaRN": in_ropes(attention_factor=1.0),
            "shares": in_experts(norm_topk_prob=False),
        },
    ),
    Case(
        name="gpt-oss-without-biases",
        family="gpt_oss",
        settings=GPT_OSS
        | {
            "attention_bias": False,
            "layer_types": ["full_attention"] * 3 + ["sliding_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        has_gguf=False,
    ),
    Case(
        name="gpt-oss-published-rope",
        family="gpt_oss",
        settings=GPT_OSS
        | {
            "head_dim": 64,
            "rope_parameters": YARN
            | {
                "rope_theta": 150_000.0,
                "factor": 32.0,
                "beta_fast": 32.0,
                "original_max_position_embeddings": 4096,
            },
        },
    ),
    Case(
        name="glm-4.5",
        family="glm4_moe",
        settings=GLM,
        forgotten={
            "partial rope": in_ropes(rotary_dim=24),
            "scale of shares": in_experts(share_scale=1.0),
            "score": in_experts(score=ExpertScore.SOFTMAX),
            "correction": in_experts(has_score_correction_bias=False),
        },
    ),
    Case(
        name="glm-4.5-air",
        family="glm4_moe",
        settings=GLM
        | {
            "use_qk_norm": False,
            "routed_scaling_factor": 1.0,
            "n_shared_experts": 1,
            "first_k_dense_replace": 2,
        },
    ),
    Case(
        name="glm-groups-not-normalized",
        family="glm4_moe",
        settings=GLM
        | {
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": False,
            "attention_bias": False,
            "first_k_dense_replace": 0,
        },
        forgotten={"groups": in_experts(num_groups=1, num_groups_used=1)},
    ),
    Case(
        name="qwen-1.5-moe",
        family="qwen2_moe",
        settings=QWEN,
        forgotten={"gate": in_experts(has_shared_gate=False), "shared": in_experts(shared=None)},
    ),
    Case(
        name="qwen2-moe-normalized-in-some-layers-windows",
        family="qwen2_moe",
        settings=QWEN
        | {
            "num_hidden_layers": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 2,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 3,
        },
        forgotten={"windows": in_attention(window=None)},
        has_gguf=False,
    ),
    Case(name="mixtral", family="mixtral", settings=FEW),
    Case(
        name="mixtral-window",
        family="mixtral",
        settings=FEW | {"sliding_window": 9, "tie_word_embeddings": True},
        forgotten={"window": in_attention(window=None)},
        has_gguf=False,
    ),
    Case(
        name="minimax-m2",
        family="minimax_m2",
        settings=MINIMAX,
        forgotten={
            "partial rope": in_ropes(rotary_dim=24),
            "correction": in_experts(has_score_correction_bias=False),
        },
    ),
    Case(
        name="olmoe",
        family="olmoe",
        settings={"num_experts": 7, "num_experts_per_tok": 3, "num_key_value_heads": 4},
    ),
    Case(
        name="olmoe-normalized-biases",
        family="olmoe",
        settings={
            "num_experts": 7,
            "num_experts_per_tok": 3,
            "norm_topk_prob": True,
            "attention_bias": True,
        },
        has_gguf=False,
    ),
    Case(
        name="granite-moe",
        family="granitemoe",
        settings=GRANITE,
        forgotten={
            "attention scale": in_attention(scale=24**-0.5),
            "residual scale": in_layers(residual_scale=1.0),
            "embedding scale": lambda config: replace(config, embedding_scale=1.0),
            "logit scale": lambda config: replace(config, logit_scale=1.0),
            "shares": in_experts(norm_topk_prob=False),
        },
    ),
    Case(
        name="granite-moe-shared-tied",
        family="granitemoeshared",
        settings=GRANITE | {"shared_intermediate_size": 64, "tie_word_embeddings": True},
    ),
    Case(
        name="ernie-4.5",
        family="ernie4_5_moe",
        settings=ERNIE,
        forgotten={"correction": in_experts(has_score_correction_bias=False)},
    ),
    Case(
        name="ernie-4.5-some-layers-tied",
        family="ernie4_5_moe",
        settings=ERNIE
        | {
            "num_hidden_layers": 5,
            "moe_layer_start_index": 2,
            "moe_layer_end_index": 3,
            "moe_layer_interval": 2,
            "moe_num_shared_experts": 0,
            "tie_word_embeddings": True,
        },
    ),
)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], RandomModel]:
    def make(case: Case, directory: Path) -> RandomModel:
        return make_expert_model(case.family, case.settings, directory, seed=11)

    return made_once(tmp_path_factory, make)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_logits_at_every_position(case: Case, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case), random_tokens(100)
    actual = logits_of_files(model.directory, tokens, boundaries=[1])
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_native_engine(case: Case, models: Callable[[Case], RandomModel]) -> None:
    # Tokens of which no model's router finds two experts nearly equal.
    model, tokens = models(case), random_tokens(70, seed=4)
    actual = logits_of_files(model.directory, tokens, engine_factory=native_engine)
    limit = native_error_limit(num_layers=model.config["num_hidden_layers"], is_quantized=False)
    assert_mostly_close(actual, torch_logits(model, tokens), limit=limit)


@pytest.mark.parametrize("case", [case for case in CASES if case.has_gguf], ids=str)
def test_gguf_files_give_the_same_logits(
    case: Case, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_expert_gguf(path, model)
    assert describe_model(str(path)).files.kind is FileKind.GGUF
    actual, expected = logits_of_files(path, tokens), torch_logits(model, tokens)
    assert_logits_agree(actual, expected, tolerance=TOLERANCE)

    by_native = logits_of_files(path, tokens, engine_factory=native_engine)
    limit = native_error_limit(num_layers=model.config["num_hidden_layers"], is_quantized=False)
    assert_mostly_close(by_native, expected, limit=limit)


@pytest.mark.parametrize(("case", "what"), forgotten_in(CASES))
def test_a_forgotten_feature_would_show(
    case: Case, what: str, models: Callable[[Case], RandomModel]
) -> None:
    model, tokens = models(case), random_tokens(60)
    actual = logits_forgetting(model, case.forgotten[what], tokens)
    assert np.abs(actual - torch_logits(model, tokens)[-1]).max() > 100 * TOLERANCE


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    model, tokens = make_expert_model("gpt_oss", GPT_OSS, tmp_path, seed=3), random_tokens(60)
    store_experts_in_mxfp4(model)
    actual = logits_of_files(tmp_path, tokens, boundaries=[2])
    assert_logits_agree(actual, torch_logits(model, tokens), tolerance=TOLERANCE)

    path = tmp_path / "model.gguf"
    write_expert_gguf(path, model, formats={"_exps.weight": gguf.GGMLQuantizationType.MXFP4})
    assert_logits_agree(logits_of_files(path, tokens), actual, tolerance=TOLERANCE)


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    model, tokens = make_expert_model("glm4_moe", GLM, tmp_path, seed=3), random_tokens(30)
    expected = torch_logits(model, tokens)
    add_layer_that_predicts(tmp_path)
    description = describe_model(str(tmp_path))
    assert description.config.num_layers == model.config["num_hidden_layers"]
    assert_logits_agree(logits_of_files(tmp_path, tokens), expected, tolerance=TOLERANCE)

    # A model of four layers, of which the GGUF file says that the last one predicts.
    deeper = make_expert_model(
        "glm4_moe", GLM | {"num_hidden_layers": 4}, tmp_path / "deeper", seed=3
    )
    path = tmp_path / "model.gguf"
    write_expert_gguf(path, deeper, num_more_layers=1)
    assert describe_model(str(path)).config.num_layers == 3
    model.torch_model.load_state_dict(
        {
            name: values
            for name, values in deeper.torch_model.state_dict().items()
            if ".layers.3." not in name
        }
    )
    expected = torch_logits(model, tokens)
    assert_logits_agree(logits_of_files(path, tokens), expected, tolerance=TOLERANCE)


def test_norms_over_the_width_are_not_those_of_heads(models: Callable[[Case], RandomModel]) -> None:
    for name in ("minimax-m2", "olmoe"):
        config = describe_model(str(models(case_named(CASES, name)).directory)).config
        assert {layer.grouped_attention.head_norm for layer in config.layers} == {HeadNorm.WIDTH}
