"""What the files of Mamba-2, Nemotron-H and Falcon-H1 models mean, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.models.mamba_configs import (
    FALCON_H1_0_5B,
    FALCON_H1_34B,
    MAMBA_CODESTRAL_7B,
    NEMOTRON_3_NANO_30B_A3B,
    NEMOTRON_H_8B,
    NEMOTRON_NANO_9B_V2,
)
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.names import FileKind
from potluck.models.program import build_program, weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    skipped_parts,
    stored_weights,
    with_stored_head,
)
from potluck.models.rope import empty_rope_tables
from potluck.types.model import (
    ExpertsConfig,
    MambaConfig,
    MambaScales,
    MlpConfig,
    ModelConfig,
    RopeConfig,
)
from potluck.types.program import Activation, ExpertScore, Program, Shard


def read(config: Mapping[str, Any], **changes: Any) -> ModelConfig:
    """The configuration with changes; ``...`` removes a key."""
    merged = {**config, **changes}
    return config_from_hugging_face({key: each for key, each in merged.items() if each is not ...})


def program_of(config: ModelConfig) -> Program:
    shard = Shard.whole(config.num_layers)
    return build_program(
        config, shard, context_tokens=1, ropes=empty_rope_tables(config, context_tokens=1)
    )


def num_weights(config: ModelConfig) -> int:
    specs = weight_specs(config, Shard.whole(config.num_layers))
    return sum(math.prod(spec.shape) for spec in specs)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (MAMBA_CODESTRAL_7B, 7.29),
        (NEMOTRON_H_8B, 8.1),
        (NEMOTRON_NANO_9B_V2, 8.89),
        (NEMOTRON_3_NANO_30B_A3B, 31.6),
        (FALCON_H1_0_5B, 0.52),
        (FALCON_H1_34B, 33.6),
    ],
    ids=["codestral", "nemotron-8b", "nemotron-9b", "nemotron-3", "falcon-0.5b", "falcon-34b"],
)
def test_published_models_have_as_many_weights_as_their_cards_say(
    config: Mapping[str, Any], billions: float
) -> None:
    assert num_weights(read(config)) / 1e9 == pytest.approx(billions, rel=0.01)


def test_mamba_2() -> None:
    config = read(MAMBA_CODESTRAL_7B)
    (layer,) = set(config.layers)
    assert layer.attention is None
    assert layer.mlp is None
    assert layer.experts is None
    assert layer.recurrence == MambaConfig(
        num_heads=128, head_dim=64, num_groups=8, state_dim=128, kernel=4, norm_groups=8
    )
    assert config.norm_epsilon == 1e-5
    assert config.max_context_tokens == 2**20


def test_mamba_2_has_neither_caches_nor_ropes() -> None:
    program = program_of(read(MAMBA_CODESTRAL_7B))
    assert program.caches == ()
    assert program.ropes == ()
    assert len(program.states) == 2 * 64


def test_nemotron_h() -> None:
    config = read(NEMOTRON_H_8B)
    mixer, mlp, attention = (config.layers[layer] for layer in (0, 1, 7))
    assert mixer.recurrence == MambaConfig(
        num_heads=128, head_dim=64, num_groups=8, state_dim=128, kernel=4, norm_groups=8
    )
    assert mlp.mlp == MlpConfig(width=21_504, activation=Activation.RELU_SQUARED)
    assert not mlp.mixes_tokens
    assert attention.grouped_attention.rope is None
    assert attention.grouped_attention.head_dim == 128
    assert attention.mlp is None
    assert attention.recurrence is None
    assert config.ropes == ()
    assert [bool(each.attention) for each in config.layers].count(True) == 4


def test_nemotron_3_nano() -> None:
    config = read(NEMOTRON_3_NANO_30B_A3B)
    assert config.layers[1].experts == ExpertsConfig(
        num_experts=128,
        num_experts_per_token=6,
        width=1856,
        norm_topk_prob=True,
        activation=Activation.RELU_SQUARED,
        score=ExpertScore.SIGMOID,
        share_scale=2.5,
        has_score_correction_bias=True,
        shared=MlpConfig(width=3712, activation=Activation.RELU_SQUARED),
    )
    assert config.layers[5].grouped_attention.num_kv_heads == 2


def test_nemotron_h_is_described_by_letters_or_by_words() -> None:
    words = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    pattern = NEMOTRON_H_8B["hybrid_override_pattern"]
    listed = read(
        NEMOTRON_H_8B,
        hybrid_override_pattern=...,
        layers_block_type=[words[letter] for letter in pattern],
    )
    assert listed == read(NEMOTRON_H_8B)


def test_falcon_h1() -> None:
    config = read(FALCON_H1_0_5B)
    (layer,) = set(config.layers)
    assert isinstance(layer.recurrence, MambaConfig)
    assert layer.recurrence.norm_groups is None
    assert layer.recurrence.scales == MambaScales(
        gate=1.25 * 0.3535533905932738,
        x=1.25 * 0.25,
        b=1.25 * 0.3535533905932738,
        c=1.25 * 0.5,
        step=1.25 * 0.3535533905932738,
    )
    assert layer.recurrence.output_scale == 0.23570226039551587
    attention = layer.grouped_attention
    assert (attention.scale, attention.output_scale) == (64**-0.5, 0.9375)
    assert attention.key_scale == 0.39062499999999994
    assert layer.mlp == MlpConfig(width=2048, gate_scale=0.8838834764831844, output_scale=0.5859375)
    assert (config.embedding_scale, config.logit_scale) == (5.656854249492381, 0.0390625)
    assert config.ropes == (RopeConfig(theta=1e11, rotary_dim=64),)


def test_a_norm_of_falcon_h1_goes_by_groups() -> None:
    recurrence = read(FALCON_H1_34B).layers[0].recurrence
    assert isinstance(recurrence, MambaConfig)
    assert (recurrence.norm_groups, recurrence.norm_before_gate) == (2, False)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (MAMBA_CODESTRAL_7B, {"rms_norm": False}, "rms_norm=False"),
        (MAMBA_CODESTRAL_7B, {"hidden_act": "gelu"}, "hidden_act=gelu"),
        (NEMOTRON_3_NANO_30B_A3B, {"moe_latent_size": 1000}, "moe_latent_size 1000"),
        (
            NEMOTRON_3_NANO_30B_A3B,
            {"moe_latent_size": 1024, "mlp_bias": True},
            "mlp_bias with moe_latent_size=1024",
        ),
        (NEMOTRON_H_8B, {"mlp_hidden_act": "silu"}, "mlp_hidden_act=silu"),
        (NEMOTRON_H_8B, {"mamba_hidden_act": "gelu"}, "mamba_hidden_act=gelu"),
        (NEMOTRON_H_8B, {"attention_bias": True}, "attention_bias=True"),
        (NEMOTRON_H_8B, {"sliding_window": 512}, "sliding_window=512"),
        (NEMOTRON_H_8B, {"mamba_proj_bias": True}, "mamba_proj_bias=True"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern X"),
        (NEMOTRON_H_8B, {"layers_block_type": ["rwkv"]}, "layers_block_type rwkv"),
        (FALCON_H1_0_5B, {"mamba_use_mlp": False}, "mamba_use_mlp=False"),
        (FALCON_H1_0_5B, {"attn_layer_indices": [0]}, "attn_layer_indices"),
        (FALCON_H1_0_5B, {"mamba_proj_bias": True}, "mamba_proj_bias with ssm_in_multiplier"),
        (
            FALCON_H1_0_5B,
            {"attention_bias": True, "attention_in_multiplier": 0.5},
            "attention_bias with attention_in_multiplier",
        ),
        (FALCON_H1_0_5B, {"hidden_act": "gelu"}, "hidden_act=gelu"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    config: Mapping[str, Any], changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read(config, **changes)
    assert named in str(error.value)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (MAMBA_CODESTRAL_7B, {"num_heads": 127}, "num_heads"),
        (MAMBA_CODESTRAL_7B, {"n_groups": 3}, "n_groups"),
        (MAMBA_CODESTRAL_7B, {"time_step_limit": [1.0]}, "time_step_limit"),
        (NEMOTRON_H_8B, {"num_hidden_layers": 51}, "num_hidden_layers"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": ...}, "hybrid_override_pattern"),
        (NEMOTRON_H_8B, {"hybrid_override_pattern": ""}, "hybrid_override_pattern"),
        (FALCON_H1_0_5B, {"mamba_d_head": 32}, "mamba_d_head"),
        (FALCON_H1_0_5B, {"mamba_n_heads": 25}, "mamba_n_heads"),
        (FALCON_H1_0_5B, {"ssm_multipliers": [1.0] * 4}, "ssm_multipliers"),
        (FALCON_H1_0_5B, {"mlp_multipliers": [1.0]}, "mlp_multipliers"),
    ],
)
def test_what_makes_no_sense_is_an_error_that_names_the_key(
    config: Mapping[str, Any], changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError) as error:
        read(config, **changes)
    assert named in str(error.value)


def test_tensors_of_nemotron_h_have_either_prefix() -> None:
    config = read(NEMOTRON_3_NANO_30B_A3B)
    for prefix in ("backbone.", "model.", ""):
        stored = with_stored_head(
            config, [f"{prefix}embeddings.weight", "lm_head.weight"], FileKind.HUGGING_FACE
        )
        specs = weight_specs(stored, Shard.whole(stored.num_layers))
        names = {
            each.canonical_name: each.stored_names
            for each in stored_weights(stored, specs, FileKind.HUGGING_FACE)
        }
        assert names["layers.0.mamba.rate.weight"] == (f"{prefix}layers.0.mixer.A_log",)
        assert names["layers.1.mlp_norm.weight"] == (f"{prefix}layers.1.norm.weight",)
        assert names["norm.weight"] == (f"{prefix}norm_f.weight",)
        assert names["head.weight"] == ("lm_head.weight",)


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    config = read(NEMOTRON_3_NANO_30B_A3B)
    names = ["mtp.layers.0.eh_proj.weight"]
    assert skipped_parts(config, names, FileKind.HUGGING_FACE) == ("multi-token prediction layers",)


MAMBA2_METADATA: Mapping[str, Any] = {
    "general.architecture": "mamba2",
    "mamba2.attention.head_count": 0,
    "mamba2.attention.layer_norm_rms_epsilon": 1e-5,
    "mamba2.block_count": 2,
    "mamba2.context_length": 2**20,
    "mamba2.embedding_length": 32,
    "mamba2.feed_forward_length": 0,
    "mamba2.ssm.conv_kernel": 4,
    "mamba2.ssm.group_count": 2,
    "mamba2.ssm.inner_size": 64,
    "mamba2.ssm.state_size": 16,
    "mamba2.ssm.time_step_rank": 4,
}
NEMOTRON_METADATA: Mapping[str, Any] = {
    "general.architecture": "nemotron_h",
    "nemotron_h.attention.head_count": 2,
    "nemotron_h.attention.head_count_kv": [0, 0, 1, 0],
    "nemotron_h.attention.key_length": 16,
    "nemotron_h.attention.value_length": 16,
    "nemotron_h.attention.layer_norm_epsilon": 1e-5,
    "nemotron_h.block_count": 4,
    "nemotron_h.context_length": 2**20,
    "nemotron_h.embedding_length": 32,
    "nemotron_h.feed_forward_length": [0, 48, 0, 0],
    "nemotron_h.rope.scaling.finetuned": False,
    "nemotron_h.ssm.conv_kernel": 4,
    "nemotron_h.ssm.group_count": 2,
    "nemotron_h.ssm.inner_size": 64,
    "nemotron_h.ssm.state_size": 16,
    "nemotron_h.ssm.time_step_rank": 4,
}


def read_gguf(metadata: Mapping[str, Any], *names: str, **changes: Any) -> ModelConfig:
    """The configuration of a file with these tensors, and with changes of the metadata."""
    architecture = metadata["general.architecture"]
    changed = {**metadata, **{f"{architecture}.{key}": each for key, each in changes.items()}}
    source = StateDictSource(
        {name: np.zeros((64, 32), np.float32) for name in ("token_embd.weight", *names)}
    )
    return config_from_gguf(changed, source, path="model.gguf")


def test_gguf_files_of_mamba_2_have_zeros_for_heads() -> None:
    config = read_gguf(MAMBA2_METADATA, "blk.0.ssm_conv1d.bias")
    (layer,) = set(config.layers)
    assert layer.recurrence == MambaConfig(
        num_heads=4, head_dim=16, num_groups=2, state_dim=16, kernel=4, norm_groups=2
    )
    assert (config.vocab_size, config.tied_head) == (64, True)
    for key in ("attention.head_count", "feed_forward_length"):
        with pytest.raises(UnsupportedModelError, match=key):
            read_gguf(MAMBA2_METADATA, **{key: 8})


def test_gguf_files_of_nemotron_h_say_of_each_layer_what_it_is() -> None:
    config = read_gguf(NEMOTRON_METADATA)
    mixer, mlp, attention, last = config.layers
    assert mixer.recurrence is not None
    assert mixer == last
    assert mlp.mlp == MlpConfig(width=48, activation=Activation.RELU_SQUARED)
    assert attention.grouped_attention.rope is None
    assert config.norm_epsilon == 1e-5


def test_blocks_that_predict_further_tokens_are_no_layers() -> None:
    changes = {
        "block_count": 5,
        "nextn_predict_layers": 1,
        "feed_forward_length": [0, 48, 0, 0, 48],
        "attention.head_count_kv": [0, 0, 1, 0, 1],
    }
    assert read_gguf(NEMOTRON_METADATA, **changes) == read_gguf(NEMOTRON_METADATA)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"feed_forward_length": [0, 48, 0, 64]}, "feed_forward_length"),
        ({"feed_forward_length": [0, 48]}, "feed_forward_length"),
        ({"attention.head_count_kv": [0, 1, 2, 0]}, "attention.head_count_kv"),
        ({"expert_group_scale": 2.0}, "expert_group_scale"),
    ],
)
def test_other_gguf_files_of_nemotron_h_are_refused(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError) as error:
        read_gguf(NEMOTRON_METADATA, **changes)
    assert named in str(error.value)
