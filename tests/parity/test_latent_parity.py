"""Families with latent attention against transformers, from safetensors and GGUF files, in F32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
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
from support.models.changes import Change, each_layer, in_experts, in_ropes
from support.models.expert_models import (
    add_layer_that_predicts,
    make_expert_model,
    write_expert_gguf,
)
from support.models.random_models import RandomModel, random_tokens, torch_logits
from support.models.state_dict_source import StateDictSource

from potluck.catalog import describe_model, open_weights, read_profile
from potluck.models.names import FileKind
from potluck.types.model import LatentAttentionConfig, LayerConfig
from potluck.types.program import ExpertScore, Shard
from potluck.types.tensor import TensorFormat, TensorSource

TOLERANCE = 1e-4


def in_latent(**changes: Any) -> Change:
    """The change of every layer's latent attention."""

    def changed(layer: LayerConfig) -> LayerConfig:
        assert isinstance(layer.attention, LatentAttentionConfig)
        return replace(layer, attention=replace(layer.attention, **changes))

    return each_layer(changed)


YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 8.0,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 64,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 48,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
}
V3: dict[str, Any] = LATENT | {"n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
# GGUF files have one epsilon, which llama.cpp takes for all norms; transformers has 1e-6 in some.
FLASH: dict[str, Any] = {
    "rms_norm_eps": 1e-6,
    **{key: value for key, value in LATENT.items() if key != "first_k_dense_replace"},
}

CASES: tuple[Case, ...] = (
    Case(
        name="deepseek-v2-lite",
        family="deepseek_v2",
        settings=LATENT
        | {
            "q_lora_rank": None,
            "n_shared_experts": 2,
            "rope_parameters": YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        },
        forgotten={
            "scale of scores": in_latent(scale=48**-0.5),
            "pairs": in_latent(is_interleaved=False),
            "shares": in_experts(norm_topk_prob=True),
        },
    ),
    Case(
        name="deepseek-v2-low-rank-scaled-shares",
        family="deepseek_v2",
        settings=LATENT | {"routed_scaling_factor": 3.0, "first_k_dense_replace": 0},
        forgotten={"scale of shares": in_experts(share_scale=1.0)},
    ),
    Case(
        name="deepseek-v3",
        family="deepseek_v3",
        settings=V3 | {"rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
        forgotten={
            "scale of scores": in_latent(scale=48**-0.5),
            "pairs": in_latent(is_interleaved=False),
            "scale of shares": in_experts(share_scale=1.0),
            "score": in_experts(score=ExpertScore.SOFTMAX),
            "correction": in_experts(has_score_correction_bias=False),
            "groups": in_experts(num_groups=1, num_groups_used=1),
            "rope scaling": in_ropes(factor=1.0),
        },
    ),
    Case(
        name="kimi-k2",
        family="deepseek_v3",
        settings=LATENT
        | {
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 2.827,
            "rope_parameters": YARN
            | {"beta_fast": 1.0, "factor": 64.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        forgotten={"scale of scores": in_latent(scale=48**-0.5)},
    ),
    Case(
        name="deepseek-v3-other-scales",
        family="deepseek_v3",
        settings=V3
        | {
            "norm_topk_prob": False,
            "first_k_dense_replace": 2,
            "tie_word_embeddings": True,
            "rope_parameters": YARN | {"mscale": 1.5, "mscale_all_dim": 0.5},
        },
        forgotten={"shares": in_experts(norm_topk_prob=True)},
        has_gguf=False,
    ),
    Case(
        name="deepseek-v3-biases-halves",
        family="deepseek_v3",
        settings=V3
        | {
            "attention_bias": True,
            "rope_interleave": False,
            "q_lora_rank": None,
            "rope_parameters": YARN,
        },
        forgotten={"halves": in_latent(is_interleaved=True)},
        has_gguf=False,
    ),
    Case(
        name="deepseek-v3-biases",
        family="deepseek_v3",
        settings=V3 | {"attention_bias": True},
        forgotten={"pairs": in_latent(is_interleaved=False)},
        has_gguf=False,
    ),
    Case(
        name="glm-4.7-flash",
        family="glm4_moe_lite",
        settings=FLASH
        | {
            "v_head_dim": 16,
            "routed_scaling_factor": 1.8,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
        forgotten={
            "pairs": in_latent(is_interleaved=False),
            "scale of shares": in_experts(share_scale=1.0),
            "correction": in_experts(has_score_correction_bias=False),
        },
    ),
    Case(
        name="glm-4.7-flash-other-layers",
        family="glm4_moe_lite",
        settings=FLASH
        | {"num_hidden_layers": 4, "mlp_layer_types": ["sparse", "dense", "sparse", "dense"]},
    ),
    Case(
        name="glm-4.7-flash-epsilon",
        family="glm4_moe_lite",
        settings=FLASH | {"rms_norm_eps": 0.01},
        forgotten={"epsilon of norms": in_latent(norm_epsilon=None)},
        has_gguf=False,
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


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3", "glm-4.7-flash-other-layers"])
def test_prompts_in_two_chunks(name: str, models: Callable[[Case], RandomModel]) -> None:
    """Of several lengths, below and above a block's, and cut after every token."""
    model = models(case_named(CASES, name))
    description = describe_model(str(model.directory))
    tokens = random_tokens(37, seed=5)
    expected = torch_logits(model, tokens)
    whole = Shard.whole(description.config.num_layers)
    with (
        closing(open_weights(description, [whole])) as source,
        Stages(description.config, source) as stages,
    ):
        for length in (1, 2, 15, 16, 17, 37):
            for cut in range(length):
                begun, rest = tokens[:cut], tokens[cut:length]
                if begun:
                    stages.logits(stages.slice(0, begun))
                actual = stages.logits(stages.slice(0, rest, cut))
                assert np.abs(actual - expected[length - 1]).max() <= TOLERANCE


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3", "glm-4.7-flash-other-layers"])
def test_the_native_engine_gives_the_same_bits(
    name: str, models: Callable[[Case], RandomModel]
) -> None:
    """However a prompt comes in two chunks, beside another one, and wherever layers are cut."""
    model = models(case_named(CASES, name))
    description = describe_model(str(model.directory))
    config, tokens = description.config, random_tokens(37, seed=5)
    whole = Shard.whole(config.num_layers)

    def stages(source: TensorSource, boundaries: list[int]) -> Stages:
        return Stages(config, source, boundaries=boundaries, engine_factory=native_engine)

    with closing(open_weights(description, [whole])) as source, stages(source, []) as one:
        expected = one.logits(one.slice(0, tokens))
        for cut in range(1, len(tokens)):
            one.logits(one.slice(1, tokens[:cut]))
            rest, other = one.slice(1, tokens[cut:], cut), one.slice(2, tokens[:cut])
            assert np.array_equal(one.logits(rest, other)[:1], expected)
    for cut in range(config.num_layers + 1):
        with (
            closing(open_weights(description, [whole])) as source,
            stages(source, [cut]) as two,
        ):
            assert np.array_equal(two.logits(two.slice(0, tokens)), expected)


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.7-flash-other-layers"])
def test_every_cut_gives_the_same_bits(name: str, models: Callable[[Case], RandomModel]) -> None:
    model, tokens = models(case_named(CASES, name)), random_tokens(40, seed=6)
    num_layers = model.config["num_hidden_layers"]
    whole = logits_of_files(model.directory, tokens)
    for cut in range(num_layers + 1):
        parts = logits_of_files(model.directory, tokens, boundaries=[cut])
        assert np.array_equal(parts, whole)
    all_cut = list(range(1, num_layers))
    assert np.array_equal(logits_of_files(model.directory, tokens, boundaries=all_cut), whole)


@pytest.mark.parametrize("has_joint_up", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("case", [case for case in CASES if case.has_gguf], ids=str)
def test_gguf_files_give_the_same_logits(
    case: Case, has_joint_up: bool, models: Callable[[Case], RandomModel], tmp_path: Path
) -> None:
    model, tokens = models(case), random_tokens(100, seed=4)
    path = tmp_path / "model.gguf"
    write_expert_gguf(path, model, has_joint_up=has_joint_up)
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


@pytest.mark.parametrize("name", ["deepseek-v3", "glm-4.7-flash"])
def test_layers_that_predict_further_tokens_are_left_out(name: str, tmp_path: Path) -> None:
    case = case_named(CASES, name)
    model = make_expert_model(case.family, case.settings, tmp_path, seed=3)
    tokens = random_tokens(30)
    expected = torch_logits(model, tokens)
    add_layer_that_predicts(tmp_path)
    description = describe_model(str(tmp_path))
    assert description.config.num_layers == model.config["num_hidden_layers"]
    assert description.skipped
    assert_logits_agree(logits_of_files(tmp_path, tokens), expected, tolerance=TOLERANCE)

    # A model of four layers, of which the GGUF file says that the last one predicts.
    deeper = make_expert_model(
        case.family, {**case.settings, "num_hidden_layers": 4}, tmp_path / "deeper", seed=3
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


def test_old_gguf_files_in_blocks(models: Callable[[Case], RandomModel], tmp_path: Path) -> None:
    """Keys and values in one, in blocks, of which keys are transposed: as the same in floats."""
    model, tokens = models(case_named(CASES, "deepseek-v2-lite")), random_tokens(40)
    kind = gguf.GGMLQuantizationType.Q8_0
    rounded = {
        name: gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind).reshape(values.shape)
        if name.endswith("kv_b_proj.weight")
        else values
        for name, values in model.state.items()
    }
    config = describe_model(str(model.directory)).config
    with Stages(config, StateDictSource(rounded)) as stages:
        expected = stages.logits_at_all_positions(tokens)
    path = tmp_path / "model.gguf"
    write_expert_gguf(path, model, formats={"attn_kv_b": kind}, has_joint_up=True)
    assert_logits_agree(logits_of_files(path, tokens), expected, tolerance=TOLERANCE)
    description = describe_model(str(path))
    profile = read_profile(description)
    assert profile.info("layers.0.attn.k_up.weight").format is TensorFormat.F32
    assert profile.info("layers.0.attn.v_up.weight").format is TensorFormat.Q8_0
