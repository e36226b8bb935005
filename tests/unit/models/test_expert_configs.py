"""What the files of models with experts mean: sizes of published models, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.models.expert_configs import (
    ERNIE_4_5_21B_A3B,
    GLM_4_5_AIR,
    GPT_OSS_20B,
    GRANITE_3_1B_A400M,
    MINIMAX_M2,
    MIXTRAL_8X7B,
    OLMOE,
    QWEN_1_5_MOE,
)
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.names import FileKind
from potluck.models.program import weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    skipped_parts,
    stored_weights,
)
from potluck.types.model import (
    ExpertsConfig,
    HeadNorm,
    MlpConfig,
    ModelConfig,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import Activation, ExpertScore, Shard


def read(config: Mapping[str, Any], **changes: Any) -> ModelConfig:
    """The configuration with changes; ``...`` removes a key."""
    merged = {**config, **changes}
    return config_from_hugging_face({key: each for key, each in merged.items() if each is not ...})


def num_weights(config: ModelConfig) -> int:
    specs = weight_specs(config, Shard.whole(config.num_layers))
    return sum(math.prod(spec.shape) for spec in specs)


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (GPT_OSS_20B, 20.9),
        (GLM_4_5_AIR, 106.9),
        (QWEN_1_5_MOE, 14.3),
        (MIXTRAL_8X7B, 46.7),
        (MINIMAX_M2, 228.7),
        (OLMOE, 6.9),
        (GRANITE_3_1B_A400M, 1.3),
        (ERNIE_4_5_21B_A3B, 21.8),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_published_models_have_as_many_weights_as_their_cards_say(
    config: Mapping[str, Any], billions: float
) -> None:
    assert num_weights(read(config)) / 1e9 == pytest.approx(billions, abs=0.1)


def test_gpt_oss() -> None:
    config = read(GPT_OSS_20B)
    assert config.layers[0].experts == ExpertsConfig(
        num_experts=32,
        num_experts_per_token=4,
        width=2880,
        norm_topk_prob=True,
        activation=Activation.CLAMPED_SWIGLU,
        has_bias=True,
    )
    assert [layer.grouped_attention.window for layer in config.layers] == [128, None] * 12
    assert all(layer.grouped_attention.has_sinks for layer in config.layers)
    assert config.ropes == (
        RopeConfig(
            theta=150_000.0,
            rotary_dim=64,
            scaling=RopeScaling.YARN,
            factor=32.0,
            original_context_tokens=4096,
            truncate=False,
            attention_factor=0.1 * math.log(32) + 1,
        ),
    )
    # What the class of transformers takes for absent keys is the larger model.
    bare = read({key: GPT_OSS_20B[key] for key in ("architectures", "model_type")})
    assert (bare.num_layers, bare.layers[0].experts) == (
        36,
        dataclasses.replace(config.layers[0].experts, num_experts=128),
    )
    assert bare.ropes == config.ropes


def test_glm_4_5() -> None:
    config = read(GLM_4_5_AIR, use_qk_norm=True, routed_scaling_factor=2.5)
    assert config.layers[0].experts is None
    assert config.layers[0].mlp == MlpConfig(width=10_944)
    assert config.layers[1].mlp is None
    assert config.layers[1].experts == ExpertsConfig(
        num_experts=128,
        num_experts_per_token=8,
        width=1408,
        norm_topk_prob=True,
        score=ExpertScore.SIGMOID,
        share_scale=2.5,
        has_score_correction_bias=True,
        shared=MlpConfig(width=1408),
    )
    assert config.layers[0].grouped_attention.head_norm is HeadNorm.HEAD
    assert config.layers[0].grouped_attention.qkv_bias
    assert not config.layers[0].grouped_attention.output_bias
    assert config.ropes[0].rotary_dim == 64


def test_the_layers_that_glm_files_have_besides_are_left_out() -> None:
    config = read(GLM_4_5_AIR)
    names = ("model.layers.46.eh_proj.weight", "model.layers.46.mlp.experts.0.up_proj.weight")
    assert skipped_parts(config, names, FileKind.HUGGING_FACE)
    assert not skipped_parts(config, ["model.layers.45.eh_proj.weight"], FileKind.HUGGING_FACE)


def test_minimax_m2() -> None:
    config = read(MINIMAX_M2)
    assert config.ropes[0].rotary_dim == 64
    assert config.layers[0].grouped_attention.head_norm is HeadNorm.WIDTH
    experts = config.layers[61].experts
    assert experts is not None
    assert (experts.score, experts.has_score_correction_bias) == (ExpertScore.SIGMOID, True)


def test_granite() -> None:
    config = read(GRANITE_3_1B_A400M)
    assert config.embedding_scale == 12
    assert config.logit_scale == pytest.approx(1 / 6)
    assert config.layers[0].grouped_attention.scale == 1 / 64
    assert config.layers[0].residual_scale == 0.22


def test_ernie() -> None:
    config = read(ERNIE_4_5_21B_A3B)
    assert [layer.experts is None for layer in config.layers] == [True] + [False] * 27
    assert config.layers[1].experts == ExpertsConfig(
        num_experts=64,
        num_experts_per_token=6,
        width=1536,
        norm_topk_prob=True,
        has_score_correction_bias=True,
        shared=MlpConfig(width=3072),
    )
    stored = stored_weights(config, weight_specs(config, Shard.whole(28)), FileKind.HUGGING_FACE)
    turned = {each.canonical_name for each in stored if each.interleaved is not None}
    assert turned >= {"layers.0.attn.q.weight", "layers.0.attn.k.weight"}


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (GPT_OSS_20B, {"swiglu_limit": 8.0}, "swiglu_limit=8.0"),
        (GPT_OSS_20B, {"swiglu_alpha": 1.0}, "swiglu_alpha=1.0"),
        (GPT_OSS_20B, {"hidden_act": "gelu"}, "hidden_act=gelu"),
        (GPT_OSS_20B, {"layer_types": ["chunked_attention"] * 24}, "layer_types chunked_attention"),
        (GPT_OSS_20B, {"intermediate_size": 2884}, "intermediate_size 2884"),
        (GLM_4_5_AIR, {"sliding_window": 9}, "sliding_window=9"),
        (GLM_4_5_AIR, {"scoring_func": "softmax"}, "scoring_func=softmax"),
        (GLM_4_5_AIR, {"topk_method": "greedy"}, "topk_method=greedy"),
        (GLM_4_5_AIR, {"mlp_bias": True}, "mlp_bias=True"),
        (QWEN_1_5_MOE, {"attention_bias": True}, "attention_bias=True"),
        (QWEN_1_5_MOE, {"hidden_act": "relu"}, "hidden_act=relu"),
        (MIXTRAL_8X7B, {"attention_bias": True}, "attention_bias=True"),
        (MIXTRAL_8X7B, {"layer_types": ["chunked_attention"] * 32}, "layer_types"),
        (MINIMAX_M2, {"attn_type_list": [0] * 62}, "attn_type_list"),
        (MINIMAX_M2, {"scoring_func": "softmax"}, "scoring_func=softmax"),
        (MINIMAX_M2, {"shared_intermediate_size": 8192}, "shared_intermediate_size=8192"),
        (MINIMAX_M2, {"use_qk_norm": False}, "use_qk_norm=False"),
        (OLMOE, {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        (OLMOE, {"sliding_window": 9}, "sliding_window=9"),
        (GRANITE_3_1B_A400M, {"position_embedding_type": "nope"}, "position_embedding_type=nope"),
        (GRANITE_3_1B_A400M, {"mlp_bias": True}, "mlp_bias=True"),
        (ERNIE_4_5_21B_A3B, {"use_bias": True}, "use_bias=True"),
        (ERNIE_4_5_21B_A3B, {"moe_norm_min": 0.1}, "moe_norm_min=0.1"),
        (ERNIE_4_5_21B_A3B, {"moe_gate": "top2"}, "moe_gate=top2"),
        (ERNIE_4_5_21B_A3B, {"moe_use_aux_free": False}, "moe_use_aux_free=False"),
    ],
)
def test_what_is_not_computed_is_refused(
    config: Mapping[str, Any], changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match="unsupported features") as caught:
        read(config, **changes)
    assert any(named in feature for feature in caught.value.missing)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (GPT_OSS_20B, {"num_experts_per_tok": 33}, "num_experts_per_tok must be at most 32"),
        (GPT_OSS_20B, {"layer_types": ["full_attention"]}, "layer_types must have 24 entries"),
        (GLM_4_5_AIR, {"n_group": 3}, "n_group must divide 128 experts"),
        (GLM_4_5_AIR, {"n_group": 128}, "n_group must divide 128 experts"),
        (
            GLM_4_5_AIR,
            {"n_group": 32, "topk_group": 1},
            "topk_group must select enough groups of 4",
        ),
        (GLM_4_5_AIR, {"n_group": 2, "topk_group": 3}, "topk_group must select enough groups"),
        (GLM_4_5_AIR, {"routed_scaling_factor": 0}, "routed_scaling_factor must be finite"),
        (MIXTRAL_8X7B, {"num_local_experts": 4096}, "num_local_experts in 32 layers makes"),
        (MINIMAX_M2, {"rotary_dim": 129}, "rotary_dim"),
        (
            QWEN_1_5_MOE,
            {"layer_types": ["sliding_attention"] * 24},
            "layer_types requires use_sliding_window",
        ),
    ],
)
def test_what_makes_no_sense_is_named(
    config: Mapping[str, Any], changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(config, **changes)
    assert named in caught.value.message


GLM_GGUF: Mapping[str, Any] = {
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 24,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.value_length": 24,
    "block_count": 3,
    "context_length": 8192,
    "embedding_length": 96,
    "expert_count": 8,
    "expert_feed_forward_length": 48,
    "expert_gating_func": 2,
    "expert_shared_count": 1,
    "expert_used_count": 3,
    "expert_weights_norm": True,
    "expert_weights_scale": 2.5,
    "feed_forward_length": 160,
    "leading_dense_block_count": 1,
    "nextn_predict_layers": 1,
    "rope.dimension_count": 12,
}


def read_gguf(*names: str, architecture: str = "glm4moe", **changes: Any) -> ModelConfig:
    """``GLM_GGUF`` with changes; dots in keys are double underscores, ``...`` removes a key."""
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    merged = {key: each for key, each in {**GLM_GGUF, **changes}.items() if each is not ...}
    metadata = {f"{architecture}.{key}": value for key, value in merged.items()}
    tensors = {"token_embd.weight": (50, 96), **dict.fromkeys(names, (48, 96))}
    source = StateDictSource({name: np.zeros(shape, np.float32) for name, shape in tensors.items()})
    return config_from_gguf(
        {"general.architecture": architecture, **metadata}, source, path="somewhere"
    )


def test_tensors_say_what_a_gguf_file_has() -> None:
    config = read_gguf("blk.1.ffn_gate_inp.weight", "blk.1.exp_probs_b.bias")
    assert config.num_layers == 2, "the last block predicts"
    assert [layer.experts is None for layer in config.layers] == [True, False]
    experts = config.layers[1].experts
    assert experts is not None
    assert (experts.has_score_correction_bias, experts.shared, experts.share_scale) == (
        True,
        None,
        2.5,
    )
    assert experts.score is ExpertScore.SIGMOID

    config = read_gguf("blk.1.ffn_gate_inp.weight", "blk.1.ffn_up_shexp.weight")
    experts = config.layers[1].experts
    assert experts is not None
    assert (experts.has_score_correction_bias, experts.shared) == (False, MlpConfig(width=48))


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        ("glm4moe", {"expert_gating_func": 1}, "expert_gating_func=1"),
        ("glm4moe", {"expert_gating_func": 4}, "expert_gating_func=4"),
        ("glm4moe", {"rope__dimension_sections": [1, 2, 3, 0]}, "rope.dimension_sections"),
        ("minimax-m2", {"nextn_predict_layers": ...}, "expert_weights_scale=2.5"),
        (
            "olmoe",
            {"expert_gating_func": ..., "nextn_predict_layers": ...},
            "expert_weights_scale=2.5",
        ),
        ("granitemoe", {"expert_gating_func": ...}, "nextn_predict_layers=1"),
    ],
)
def test_other_gguf_files_are_refused(
    architecture: str, changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_gguf("blk.0.ffn_gate_inp.weight", architecture=architecture, **changes)
    assert any(named in feature for feature in caught.value.missing)


def test_blocks_that_predict_are_fewer_than_all() -> None:
    with pytest.raises(ModelFileError, match="nextn_predict_layers must be less than 3"):
        read_gguf(nextn_predict_layers=3)
