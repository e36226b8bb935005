"""What the files of Gemma models mean: sizes of published models, and files that are refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.models.gemma_configs import (
    GEMMA_2_2B,
    GEMMA_2_27B,
    GEMMA_3_1B,
    GEMMA_3_4B,
    GEMMA_3_27B,
    GEMMA_4_26B_A4B,
    GEMMA_4_31B,
    GEMMA_4_E2B,
    GEMMA_4_UNIFIED,
)
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.registry import config_from_gguf, config_from_hugging_face
from potluck.types.model import (
    ExpertsConfig,
    HeadNorm,
    ModelConfig,
    NormPlaces,
    PerLayerInputs,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation


def changed(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """``config`` with changes of its text part; ``...`` removes a key."""
    text = {**config.get("text_config", config), **changes}
    text = {key: value for key, value in text.items() if value is not ...}
    return {**config, "text_config": text} if "text_config" in config else text


def windows(config: ModelConfig) -> list[int | None]:
    return [layer.grouped_attention.window for layer in config.layers]


def test_gemma_2() -> None:
    config = config_from_hugging_face(GEMMA_2_2B)
    first, second = config.layers[:2]
    assert windows(config) == [4096, None] * 13
    assert first.grouped_attention.scale == 256**-0.5
    assert (first.grouped_attention.softcap, config.logit_softcap) == (50.0, 30.0)
    assert first.grouped_attention.head_norm is HeadNorm.NONE
    assert first.norms is second.norms is NormPlaces.SANDWICH
    assert first.mlp is not None
    assert first.mlp.activation is Activation.GELU_TANH
    assert config.embedding_scale == math.sqrt(2304)
    assert config.ropes == (RopeConfig(theta=10000.0, rotary_dim=256),)
    assert config.tied_head


def test_gemma_2_without_its_keys_is_the_default_of_transformers() -> None:
    config = config_from_hugging_face({"model_type": "gemma2"})
    assert config.layers == config_from_hugging_face(GEMMA_2_2B).layers


def test_the_27b_models_scale_by_their_hidden_size() -> None:
    assert config_from_hugging_face(GEMMA_2_27B).layers[0].grouped_attention.scale == 144**-0.5
    assert config_from_hugging_face(GEMMA_3_27B).layers[0].grouped_attention.scale == 168**-0.5


def test_gemma_3_1b() -> None:
    config = config_from_hugging_face(GEMMA_3_1B)
    assert windows(config) == ([512] * 5 + [None]) * 4 + [512, 512]
    assert config.ropes == (
        RopeConfig(theta=1e6, rotary_dim=256),
        RopeConfig(theta=1e4, rotary_dim=256),
    )
    ropes = [layer.grouped_attention.rope for layer in config.layers]
    assert ropes == ([1] * 5 + [0]) * 4 + [1, 1]
    assert config.layers[0].grouped_attention.head_norm is HeadNorm.HEAD
    assert config.logit_softcap is None


def test_gemma_3_4b_is_mostly_defaults() -> None:
    config = config_from_hugging_face(GEMMA_3_4B)
    attention = config.layers[0].grouped_attention
    assert (attention.num_heads, attention.num_kv_heads, attention.head_dim) == (8, 4, 256)
    assert (config.vocab_size, config.max_context_tokens) == (262208, 131072)
    assert config.ropes[0] == RopeConfig(
        theta=1e6, rotary_dim=256, scaling=RopeScaling.LINEAR, factor=8.0
    )
    assert config.ropes[1] == RopeConfig(theta=1e4, rotary_dim=256)


def test_gemma_3_with_layers_of_one_kind_has_one_rope() -> None:
    config = config_from_hugging_face(changed(GEMMA_3_1B, sliding_window_pattern=1))
    assert windows(config) == [None] * 26
    assert config.ropes == (RopeConfig(theta=1e6, rotary_dim=256),)


def test_gemma_4_31b() -> None:
    config = config_from_hugging_face(GEMMA_4_31B)
    sliding, full = config.layers[4].grouped_attention, config.layers[5].grouped_attention
    assert (sliding.head_dim, sliding.num_kv_heads, sliding.window) == (256, 16, 1024)
    assert (full.head_dim, full.num_kv_heads, full.window) == (512, 4, None)
    assert (sliding.values_are_keys, full.values_are_keys) == (False, True)
    assert sliding.has_value_norm
    assert full.has_value_norm
    assert sliding.scale == full.scale == 1.0
    assert config.ropes[0] == RopeConfig(
        theta=1e6, rotary_dim=512, scaling=RopeScaling.PROPORTIONAL, num_turning_pairs=64
    )
    assert config.ropes[1] == RopeConfig(theta=1e4, rotary_dim=256)
    assert config.logit_softcap == 30.0
    assert config.layers[0].has_output_scale
    assert config.per_layer_inputs is None
    assert all(config.can_cut_before(layer) for layer in range(61))


def test_gemma_4_26b_a4b() -> None:
    layer = config_from_hugging_face(GEMMA_4_26B_A4B).layers[0]
    assert layer.mlp is not None
    assert layer.mlp.width == 2112
    assert layer.experts == ExpertsConfig(
        num_experts=128,
        num_experts_per_token=8,
        width=704,
        norm_topk_prob=True,
        activation=Activation.GELU_TANH,
        has_expert_scale=True,
    )


def test_gemma_4_e2b() -> None:
    config = config_from_hugging_face(GEMMA_4_E2B)
    shared = [layer.grouped_attention.shared_layer for layer in config.layers]
    assert shared == [None] * 15 + [13, 13, 13, 13, 14] * 4
    mlps = [layer.mlp for layer in config.layers]
    assert [mlp.width for mlp in mlps if mlp is not None] == [6144] * 15 + [12288] * 20
    assert config.per_layer_inputs == PerLayerInputs(width=256)
    assert not any(config.can_cut_before(layer) for layer in range(35))


def test_gemma_4_without_towers() -> None:
    config = config_from_hugging_face(GEMMA_4_UNIFIED)
    assert config.family == "gemma4_unified_text"
    assert config.per_layer_inputs is None
    assert config.layers[5].grouped_attention.num_kv_heads == 1


def test_heads_by_layer_are_those_by_kind() -> None:
    by_layer = {
        str(layer): {"head_dim": 512, "num_key_value_heads": 4} for layer in range(5, 60, 6)
    }
    config = config_from_hugging_face(
        changed(
            GEMMA_4_31B,
            global_head_dim=...,
            num_global_key_value_heads=...,
            per_layer_config=by_layer,
        )
    )
    assert config == config_from_hugging_face(GEMMA_4_31B)


def test_no_heads_by_layer_are_heads_that_are_all_alike() -> None:
    config = config_from_hugging_face(changed(GEMMA_4_31B, per_layer_config={}))
    assert {layer.grouped_attention.head_dim for layer in config.layers} == {256}


def test_gemma_4_ends_with_a_full_layer() -> None:
    kinds = ["sliding_attention"] * 60
    config = config_from_hugging_face(changed(GEMMA_4_31B, layer_types=kinds))
    assert windows(config) == [1024] * 59 + [None]


@pytest.mark.parametrize(
    ("config", "changes", "feature"),
    [
        (GEMMA_2_2B, {"hidden_activation": "gelu"}, "hidden_activation=gelu"),
        (GEMMA_2_2B, {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        (GEMMA_2_2B, {"per_layer_config": {"3": {"head_dim": 128}}}, "per_layer_config={3}"),
        (GEMMA_2_2B, {"layer_types": ["chunked"] * 26}, "layer_types chunked"),
        (GEMMA_3_1B, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (GEMMA_3_1B, {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        (GEMMA_3_1B, {"rope_scaling": {"rope_type": "dynamic"}}, "rope scaling dynamic"),
        (GEMMA_3_1B, {"rope_parameters": {"rope_theta": 1.0}}, "rope_theta in rope_parameters"),
        (GEMMA_3_4B, {"attention_chunk_size": 8}, "attention_chunk_size=8"),
        (
            GEMMA_3_4B,
            {"final_logit_softcapping": 30.0},
            "text_config.final_logit_softcapping=30.0",
        ),
        (GEMMA_4_31B, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention=all"),
        (GEMMA_4_31B, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        (GEMMA_4_31B, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (
            GEMMA_4_31B,
            {"per_layer_config": {"5": {"sliding_window": 4}}},
            "sliding_window in per_layer_config",
        ),
        (
            GEMMA_4_31B,
            {"per_layer_config": {"5": {"head_dim": 128}}},
            "different heads in layers of the same kind (per_layer_config)",
        ),
        (
            GEMMA_4_31B,
            {
                "rope_parameters": {
                    "full_attention": {"rope_theta": 1e4},
                    "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
                }
            },
            "partial_rotary_factor=0.5 in the rope of sliding_attention",
        ),
        (
            GEMMA_4_31B,
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "beta_fast": 32},
                    "sliding_attention": {"rope_theta": 1e4},
                }
            },
            "beta_fast in rope scaling proportional",
        ),
        (
            GEMMA_4_E2B,
            {"vocab_size_per_layer_input": 1000},
            "vocab_size_per_layer_input=1000 with a vocabulary of 262144 tokens",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    config: Mapping[str, Any], changes: Mapping[str, Any], feature: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        config_from_hugging_face(changed(config, **changes))
    assert feature in caught.value.missing


@pytest.mark.parametrize(
    ("config", "changes", "problem"),
    [
        (GEMMA_2_2B, {"layer_types": ["full_attention"]}, "1 entries for 26 layers"),
        (GEMMA_2_2B, {"sliding_window": None}, "sliding_window is missing"),
        (GEMMA_2_2B, {"final_logit_softcapping": 0.0}, "final_logit_softcapping must be"),
        (
            GEMMA_4_31B,
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            "rope_parameters.sliding_attention is missing",
        ),
        (GEMMA_4_31B, {"per_layer_config": {"60": {}}}, "per_layer_config has the keys"),
        (GEMMA_4_E2B, {"num_kv_shared_layers": 34}, "no layer of its kind computes any"),
        (GEMMA_4_E2B, {"num_kv_shared_layers": 36}, "no layer of its kind computes any"),
    ],
)
def test_what_makes_no_sense_is_an_error(
    config: Mapping[str, Any], changes: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        config_from_hugging_face(changed(config, **changes))


GGUF: Mapping[str, Any] = {
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.value_length": 16,
    "block_count": 12,
    "context_length": 8192,
    "embedding_length": 96,
    "feed_forward_length": 160,
    "rope.freq_base": 1e6,
}
GGUF_4: Mapping[str, Any] = {
    **GGUF,
    "attention.key_length_swa": 8,
    "attention.shared_kv_layers": 0,
    "attention.sliding_window": 512,
    "attention.sliding_window_pattern": ([True] * 5 + [False]) * 2,
    "attention.value_length_swa": 8,
    "embedding_length_per_layer_input": 0,
    "rope.dimension_count": 16,
    "rope.dimension_count_swa": 8,
    "rope.freq_base_swa": 1e4,
}


def read_gguf(
    architecture: str, values: Mapping[str, Any], *names: str, factors: Any = None, **changes: Any
) -> ModelConfig:
    """``values`` with ``changes``, whose keys have ``__`` for a dot."""
    merged = {**values, **{key.replace("__", "."): value for key, value in changes.items()}}
    metadata = {
        "general.architecture": architecture,
        **{f"{architecture}.{key}": value for key, value in merged.items()},
    }
    tensors = {name: np.zeros(1, np.float32) for name in names}
    tensors["token_embd.weight"] = np.zeros((50, 96), np.float32)
    if factors is not None:
        tensors["rope_freqs.weight"] = np.asarray(factors, np.float32)
    return config_from_gguf(metadata, StateDictSource(tensors), path="model.gguf")


def test_gguf_gemma_2_has_the_defaults_of_llama_cpp() -> None:
    config = read_gguf("gemma2", GGUF)
    assert windows(config) == [4096, None] * 6
    assert config.layers[0].grouped_attention.scale == 0.25
    assert (config.layers[0].grouped_attention.softcap, config.logit_softcap) == (50.0, 30.0)
    assert read_gguf("gemma2", GGUF, block_count=46).layers[0].grouped_attention.scale == 24**-0.5


def test_gguf_gemma_3() -> None:
    config = read_gguf("gemma3", GGUF, attention__sliding_window=512)
    assert windows(config) == ([512] * 5 + [None]) * 2
    assert config.ropes == (
        RopeConfig(theta=1e6, rotary_dim=16),
        RopeConfig(theta=1e4, rotary_dim=16),
    )
    assert config.logit_softcap is None
    assert read_gguf("gemma3", GGUF, block_count=62).layers[0].grouped_attention.scale == 24**-0.5
    assert windows(read_gguf("gemma3", GGUF)) == [None] * 12


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (3, [True, True, False] * 4),
        (0, [True] * 12),
        (1, [False] * 12),
        ([False, True] * 6, [False, True] * 6),
    ],
)
def test_gguf_patterns(pattern: Any, expected: list[bool]) -> None:
    changes = {"attention.sliding_window": 7, "attention.sliding_window_pattern": pattern}
    config = read_gguf("gemma3", {**GGUF, **changes})
    assert [window == 7 for window in windows(config)] == expected


@pytest.mark.parametrize("pattern", [[True] * 11, [1] * 12, -1, "all"])
def test_gguf_patterns_that_make_no_sense(pattern: Any) -> None:
    changes = {"attention.sliding_window": 7, "attention.sliding_window_pattern": pattern}
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        read_gguf("gemma3", {**GGUF, **changes})


def test_gguf_gemma_4() -> None:
    factors = [1.0] * 2 + [1e30] * 6
    values = [f"blk.{layer}.attn_v.weight" for layer in range(12) if layer % 6 < 5]
    config = read_gguf(
        "gemma4",
        GGUF_4,
        *values,
        "blk.0.layer_output_scale.weight",
        factors=factors,
        attention__head_count_kv=([2] * 5 + [1]) * 2,
        feed_forward_length=[160] * 6 + [320] * 6,
        attention__shared_kv_layers=6,
        embedding_length_per_layer_input=16,
        final_logit_softcapping=20.0,
    )
    sliding, full = config.layers[4].grouped_attention, config.layers[5].grouped_attention
    assert (sliding.head_dim, sliding.num_kv_heads, sliding.window) == (8, 2, 512)
    assert (full.head_dim, full.num_kv_heads, full.window) == (16, 1, None)
    assert (sliding.values_are_keys, full.values_are_keys) == (False, True)
    assert [layer.grouped_attention.shared_layer for layer in config.layers[6:]] == [4] * 5 + [5]
    assert [layer.mlp.width for layer in config.layers if layer.mlp] == [160] * 6 + [320] * 6
    assert config.ropes == (
        RopeConfig(theta=1e6, rotary_dim=16, scaling=RopeScaling.PROPORTIONAL, num_turning_pairs=2),
        RopeConfig(theta=1e4, rotary_dim=8),
    )
    assert config.layers[0].has_output_scale
    assert config.per_layer_inputs == PerLayerInputs(width=16)
    assert config.logit_softcap == 20.0


def test_gguf_gemma_4_has_the_defaults_of_llama_cpp() -> None:
    config = read_gguf("gemma4", GGUF_4)
    assert config.logit_softcap == 30.0
    assert config.per_layer_inputs is None
    assert not config.layers[0].has_output_scale
    assert config.ropes[0] == RopeConfig(theta=1e6, rotary_dim=16)


def test_gguf_other_factors_stay_what_they_are() -> None:
    factors = [1.0, 2.0] * 4
    assert read_gguf("gemma4", GGUF_4, factors=factors).ropes[0].frequency_factors == tuple(factors)


def test_gguf_gemma_4_experts() -> None:
    routers = [f"blk.{layer}.ffn_gate_inp.weight" for layer in range(12)]
    changes = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 32}
    experts = read_gguf("gemma4", GGUF_4, *routers, **changes).layers[11].experts
    assert experts == ExpertsConfig(
        num_experts=8,
        num_experts_per_token=2,
        width=32,
        norm_topk_prob=True,
        activation=Activation.GELU_TANH,
        has_expert_scale=True,
    )
    with pytest.raises(UnsupportedModelError, match="experts in only some layers"):
        read_gguf("gemma4", GGUF_4, *routers[:3], **changes)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"feed_forward_length": [160] * 11}, "a value for each of 12 layers"),
        ({"feed_forward_length": [160] * 11 + [0]}, "integers from 1"),
        ({"attention__head_count_kv": [2.0] * 12}, "integers from 1"),
        ({"attention__shared_kv_layers": 12}, "no layer of its kind computes any"),
        ({"attention__sliding_window_pattern": ...}, "sliding_window_pattern"),
    ],
)
def test_gguf_that_makes_no_sense(changes: Mapping[str, Any], problem: str) -> None:
    values = {
        key: value
        for key, value in GGUF_4.items()
        if changes.get(key.replace(".", "__")) is not ...
    }
    kept = {key: value for key, value in changes.items() if value is not ...}
    with pytest.raises(ModelFileError, match=problem):
        read_gguf("gemma4", values, **kept)


@pytest.mark.parametrize(
    ("architecture", "changes", "feature"),
    [
        ("gemma2", {"attention__key_length_swa": 8}, "gemma2.attention.key_length_swa=8"),
        ("gemma3", {"attention__scale": 0.5}, "gemma3.attention.scale=0.5"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "gemma3.attn_logit_softcapping=50.0"),
        ("gemma4", {"attention__value_length_swa": 4}, "attention.value_length_swa=4"),
        ("gemma4", {"rope__dimension_count_swa": 4}, "rope.dimension_count_swa=4"),
        (
            "gemma4",
            {"attention__head_count_kv": [1] * 6 + [2] * 6, "attention__shared_kv_layers": 6},
            "layer 6 with heads that differ",
        ),
    ],
)
def test_gguf_what_is_not_computed_is_refused_by_name(
    architecture: str, changes: Mapping[str, Any], feature: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_gguf(architecture, GGUF_4 if architecture == "gemma4" else GGUF, **changes)
    assert any(feature in each for each in caught.value.missing), caught.value.missing
