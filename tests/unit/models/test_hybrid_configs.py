"""Configurations of LFM2 and of Granite 4 with Mamba layers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.hybrid_configs import (
    GRANITE_4_H_1B,
    GRANITE_4_H_TINY,
    LFM2_1_2B,
    LFM2_5_1_2B,
    LFM2_8B_A1B,
)
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.registry import config_from_gguf, config_from_hugging_face
from potluck.types.model import ExpertsConfig, HeadNorm, MambaConfig, MlpConfig, ShortConvConfig
from potluck.types.program import ExpertScore

PUBLISHED = {
    "LFM2-1.2B": LFM2_1_2B,
    "LFM2.5-1.2B": LFM2_5_1_2B,
    "LFM2-8B-A1B": LFM2_8B_A1B,
    "Granite-4.0-H-Tiny": GRANITE_4_H_TINY,
    "Granite-4.0-H-1B": GRANITE_4_H_1B,
}


def test_lfm2() -> None:
    config = config_from_hugging_face(LFM2_1_2B)
    with_attention = [i for i, layer in enumerate(config.layers) if layer.attention is not None]
    assert with_attention == [2, 5, 8, 10, 12, 14]
    attention = config.layers[2].grouped_attention
    assert (attention.num_kv_heads, attention.head_dim) == (8, 64)
    assert attention.head_norm is HeadNorm.HEAD
    conv = config.layers[0]
    assert conv.recurrence == ShortConvConfig(kernel=3)
    assert conv.mlp == MlpConfig(width=8192)
    assert config.norm_epsilon == 1e-5
    assert config.ropes[0].theta == 1e6
    assert config.tied_head
    assert config_from_hugging_face(LFM2_5_1_2B) == config


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({"block_ff_dim": 6656}, 4608),
        ({"block_ff_dim": 10_240}, 6912),
        ({"block_ff_dim": 10_752, "block_auto_adjust_ff_dim": False}, 10_752),
        ({"block_ffn_dim_multiplier": 1.3}, 10_752),
        ({"block_ffn_dim_multiplier": None, "block_ff_dim": 1000}, 666),
        ({"block_multiple_of": 1, "block_ff_dim": 1000}, 666),
    ],
)
def test_the_width_follows_from_several_keys(changes: Mapping[str, Any], width: int) -> None:
    config = config_from_hugging_face({**LFM2_1_2B, **changes})
    assert {layer.mlp for layer in config.layers} == {MlpConfig(width=width)}


def test_lfm2_without_a_list_of_layers_has_attention_in_all() -> None:
    config = config_from_hugging_face({**LFM2_1_2B, "full_attn_idxs": None})
    assert not any(layer.recurrence for layer in config.layers)
    without = config_from_hugging_face({**LFM2_1_2B, "full_attn_idxs": []})
    assert all(layer.recurrence for layer in without.layers)


def test_lfm2_with_experts() -> None:
    config = config_from_hugging_face(LFM2_8B_A1B)
    assert [layer.mlp for layer in config.layers[:2]] == [MlpConfig(width=7168)] * 2
    assert {layer.experts for layer in config.layers[2:]} == {
        ExpertsConfig(
            num_experts=32,
            num_experts_per_token=4,
            width=1792,
            norm_topk_prob=True,
            score=ExpertScore.SIGMOID,
            has_score_correction_bias=True,
        )
    }
    assert config.layers[0].recurrence == ShortConvConfig(kernel=3)
    assert config.layers[6].attention is not None


def test_granite_4_with_mamba_layers() -> None:
    config = config_from_hugging_face(GRANITE_4_H_TINY)
    with_attention = [i for i, layer in enumerate(config.layers) if layer.attention is not None]
    assert with_attention == [5, 15, 25, 35]
    attention = config.layers[5].grouped_attention
    assert (attention.rope, attention.scale, attention.head_dim) == (None, 0.0078125, 128)
    assert config.ropes == ()
    mixer = config.layers[0]
    assert mixer.recurrence == MambaConfig(
        num_heads=48, head_dim=64, num_groups=1, state_dim=128, kernel=4
    )
    assert mixer.experts == ExpertsConfig(
        num_experts=64,
        num_experts_per_token=6,
        width=512,
        norm_topk_prob=True,
        shared=MlpConfig(width=1024),
    )
    assert (config.embedding_scale, mixer.residual_scale) == (12, 0.22)
    assert config.logit_scale == pytest.approx(1 / 6)


def test_granite_4_without_experts() -> None:
    config = config_from_hugging_face(GRANITE_4_H_1B)
    assert {layer.mlp for layer in config.layers} == {MlpConfig(width=4096)}
    assert {layer.experts for layer in config.layers} == {None}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_it_means_what_transformers_takes_it_for(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    published = PUBLISHED[name]
    settings = {key: published[key] for key in published if key != "model_type"}
    AutoConfig.for_model(published["model_type"], **settings).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert config_from_hugging_face(written) == config_from_hugging_face(published)


def steps_of(limits: object) -> tuple[float, float | None]:
    config = config_from_hugging_face({**GRANITE_4_H_1B, "time_step_limit": limits})
    mixer = config.layers[0].recurrence
    assert isinstance(mixer, MambaConfig)
    return mixer.least_step, mixer.largest_step


def test_limits_of_steps() -> None:
    assert steps_of(None) == (0.0, None)
    assert steps_of([0.0, float("inf")]) == (0.0, None)
    assert steps_of([0.0, {"__float__": "Infinity"}]) == (0.0, None)
    assert steps_of([0.001, 0.1]) == (0.001, 0.1)


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("LFM2-1.2B", {"hidden_act": "gelu"}, "hidden_act"),
        ("LFM2-1.2B", {"layer_types": ["conv", "sliding_attention"] * 8}, "sliding_attention"),
        ("LFM2-1.2B", {"num_experts": 8}, "num_experts"),
        ("LFM2-1.2B", {"sliding_window": 64}, "sliding_window"),
        ("LFM2-8B-A1B", {"layer_types": ["conv", "linear_attention"] * 12}, "linear_attention"),
        ("Granite-4.0-H-1B", {"position_embedding_type": "alibi"}, "position_embedding_type"),
        ("Granite-4.0-H-1B", {"layer_types": ["mamba", "conv"] * 20}, "conv"),
        ("Granite-4.0-H-1B", {"hidden_act": "gelu"}, "hidden_act"),
    ],
)
def test_look_alikes_are_refused_by_name(name: str, changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        config_from_hugging_face({**PUBLISHED[name], **changes})


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("LFM2-1.2B", {"layer_types": ["conv"]}, "layer_types"),
        ("LFM2-1.2B", {"conv_L_cache": 1}, "conv_L_cache"),
        ("LFM2-8B-A1B", {"num_experts_per_tok": 33}, "num_experts_per_tok"),
        ("Granite-4.0-H-1B", {"layer_types": ["mamba"] * 39}, "layer_types"),
        ("Granite-4.0-H-1B", {"mamba_n_heads": 47}, "mamba_n_heads"),
        ("Granite-4.0-H-1B", {"mamba_d_head": 128}, "mamba_d_head"),
        ("Granite-4.0-H-1B", {"mamba_n_groups": 5}, "mamba_n_groups"),
        ("Granite-4.0-H-1B", {"mamba_d_conv": 1000}, "mamba_d_conv"),
        ("Granite-4.0-H-1B", {"time_step_limit": [0.1, 0.01]}, "time_step_limit"),
        ("Granite-4.0-H-1B", {"time_step_limit": [0.1]}, "time_step_limit"),
        ("Granite-4.0-H-1B", {"time_step_limit": [0.1, {"__float__": "NaN"}]}, "time_step_limit"),
        ("Granite-4.0-H-1B", {"time_step_limit": [True, 2]}, "time_step_limit"),
        ("Granite-4.0-H-1B", {"time_step_limit": "all"}, "time_step_limit"),
    ],
)
def test_wrong_values_are_errors(name: str, changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        config_from_hugging_face({**PUBLISHED[name], **changes})


GGUF: Mapping[str, Any] = {
    "attention.head_count": 4,
    "attention.head_count_kv": [0, 2, 0],
    "attention.layer_norm_rms_epsilon": 1e-5,
    "block_count": 3,
    "context_length": 4096,
    "embedding_length": 96,
    "feed_forward_length": 160,
}
MAMBA: Mapping[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 192,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
}


def read_gguf(architecture: str, values: Mapping[str, Any], *more_tensors: str) -> Any:
    tensors = dict.fromkeys(("token_embd.weight", *more_tensors), np.zeros((97, 96), np.float32))
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    return config_from_gguf(
        {"general.architecture": architecture, **metadata},
        StateDictSource(tensors),
        path="model.gguf",
    )


def test_layers_without_key_value_heads_are_recurrent() -> None:
    conv = ShortConvConfig(kernel=4)
    config = read_gguf("lfm2", {**GGUF, "shortconv.l_cache": 4})
    assert [layer.recurrence for layer in config.layers] == [conv, None, conv]
    assert config.layers[1].grouped_attention.num_kv_heads == 2
    none = {"attention.head_count_kv": (0, 0, 0)}
    config = read_gguf("lfm2", {**GGUF, **none, "shortconv.l_cache": 4})
    assert [layer.recurrence for layer in config.layers] == [conv] * 3


def test_a_gguf_file_of_granite_says_whether_there_is_rope() -> None:
    config = read_gguf("granitehybrid", {**GGUF, **MAMBA, "rope.scaling.finetuned": False})
    assert config.layers[1].grouped_attention.rope is None
    mixer = MambaConfig(
        num_heads=8,
        head_dim=24,
        num_groups=2,
        state_dim=16,
        kernel=4,
        norm_groups=2,
        has_conv_bias=False,
    )
    assert [layer.recurrence for layer in config.layers] == [mixer, None, mixer]
    turned = read_gguf("granitehybrid", {**GGUF, **MAMBA}, "blk.0.ssm_conv1d.bias")
    assert turned.layers[1].grouped_attention.rope == 0
    assert turned.layers[0].recurrence.has_conv_bias


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("lfm2", {"attention.head_count_kv": [0, 2, 4]}, "head_count_kv"),
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "head_count_kv"),
        ("lfm2", {"attention.sliding_window": 64}, "sliding_window"),
        ("lfm2", {"attention.causal": False}, "attention.causal"),
        ("lfm2moe", {"expert_weights_scale": 2.5}, "expert_weights_scale"),
        ("granitehybrid", {"rope.dimension_count": 12}, "rope.dimension_count"),
        ("granitehybrid", {"attention.head_count_kv": 2}, "head_count_kv"),
        ("granitehybrid", {"ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms"),
    ],
)
def test_gguf_look_alikes_are_refused(
    architecture: str, changes: Mapping[str, Any], named: str
) -> None:
    own = MAMBA if architecture == "granitehybrid" else {"shortconv.l_cache": 3}
    with pytest.raises(UnsupportedModelError, match=named):
        read_gguf(architecture, {**GGUF, **own, **changes})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"ssm.inner_size": 190}, "ssm.inner_size"),
        ({"ssm.group_count": 3}, "ssm.group_count"),
        ({"ssm.state_size": 0}, "ssm.state_size"),
        ({"attention.head_count_kv": [0, -2, 0]}, "head_count_kv"),
    ],
)
def test_wrong_gguf_values_are_errors(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        read_gguf("granitehybrid", {**GGUF, **MAMBA, **changes})
