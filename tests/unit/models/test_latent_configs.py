"""What the files of models with latent attention mean: published sizes, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models.latent_configs import DEEPSEEK_V2_LITE, DEEPSEEK_V3, GLM_4_7_FLASH, KIMI_K2
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.names import FileKind
from potluck.models.program import weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    skipped_parts,
    stored_weights,
    with_stored_head,
)
from potluck.types.model import (
    ExpertsConfig,
    LatentAttentionConfig,
    MlpConfig,
    ModelConfig,
    RopeConfig,
    RopeScaling,
)
from potluck.types.program import ExpertScore, Shard
from potluck.types.tensor import InterleavedHeads, RowRange, StoredTensor

PUBLISHED = [
    pytest.param(config, billions, id=config["model_type"])
    for config, billions in (
        (DEEPSEEK_V2_LITE, 15.7),
        (DEEPSEEK_V3, 671.0),
        (KIMI_K2, 1026.4),
        (GLM_4_7_FLASH, 29.9),
    )
]


def read(config: Mapping[str, Any], **changes: Any) -> ModelConfig:
    """The configuration with changes; ``...`` removes a key."""
    merged = {**config, **changes}
    return config_from_hugging_face({key: each for key, each in merged.items() if each is not ...})


@pytest.mark.parametrize(("config", "billions"), PUBLISHED)
def test_published_models_have_as_many_weights_as_their_cards_say(
    config: Mapping[str, Any], billions: float
) -> None:
    whole = read(config)
    specs = weight_specs(whole, Shard.whole(whole.num_layers))
    num_weights = sum(math.prod(spec.shape) for spec in specs)
    assert num_weights / 1e9 == pytest.approx(billions, abs=0.06)


def test_deepseek_v3() -> None:
    config = read(DEEPSEEK_V3)
    mscale = 0.1 * math.log(40) + 1
    assert config.layers[0].attention == LatentAttentionConfig(
        num_heads=128,
        query_rank=1536,
        latent_rank=512,
        rope_dim=64,
        nope_dim=128,
        value_dim=128,
        scale=192**-0.5 * mscale**2,
        norm_epsilon=1e-6,
    )
    assert config.ropes == (
        RopeConfig(
            theta=10_000.0,
            rotary_dim=64,
            scaling=RopeScaling.YARN,
            factor=40.0,
            original_context_tokens=4096,
        ),
    )
    assert [layer.experts is None for layer in config.layers] == [True] * 3 + [False] * 58
    assert config.layers[2].mlp == MlpConfig(width=18_432)
    assert config.layers[60].experts == ExpertsConfig(
        num_experts=256,
        num_experts_per_token=8,
        width=2048,
        norm_topk_prob=True,
        score=ExpertScore.SIGMOID,
        num_groups=8,
        num_groups_used=4,
        share_scale=2.5,
        has_score_correction_bias=True,
        shared=MlpConfig(width=2048),
    )


def test_what_absent_keys_mean() -> None:
    """The class of transformers takes DeepSeek-V3's sizes, but for its context and rope."""
    bare = read({key: DEEPSEEK_V3[key] for key in ("architectures", "model_type")})
    config = read(DEEPSEEK_V3)
    assert bare.layers[60].experts == config.layers[60].experts
    assert bare.num_layers == 61
    assert bare.ropes[0].scaling is RopeScaling.NONE
    attention = bare.layers[0].attention
    assert isinstance(attention, LatentAttentionConfig)
    assert attention.scale == 192**-0.5


def test_deepseek_v2_lite() -> None:
    config = read(DEEPSEEK_V2_LITE)
    attention = config.layers[0].attention
    assert isinstance(attention, LatentAttentionConfig)
    assert attention.query_rank is None
    assert attention.scale == pytest.approx(192**-0.5 * (0.0707 * math.log(40) + 1) ** 2)
    assert config.ropes[0].attention_factor == 1
    experts = config.layers[1].experts
    assert experts is not None
    assert not experts.has_score_correction_bias
    assert not experts.norm_topk_prob
    assert experts.shared == MlpConfig(width=2816)


def test_kimi_k2_and_glm_4_7_flash() -> None:
    kimi = read(KIMI_K2)
    assert kimi.family == "deepseek_v3"
    assert kimi.layers[1].experts is not None
    assert kimi.layers[1].experts.num_groups == 1
    flash = read(GLM_4_7_FLASH)
    assert flash.norm_epsilon == 1e-5
    assert flash.layers[0].attention == LatentAttentionConfig(
        num_heads=20,
        query_rank=768,
        latent_rank=512,
        rope_dim=64,
        nope_dim=192,
        value_dim=256,
        scale=1 / 16,
        norm_epsilon=1e-6,
    )
    assert [layer.experts is None for layer in flash.layers] == [True] + [False] * 46
    mixed = read(GLM_4_7_FLASH, num_hidden_layers=2, mlp_layer_types=["sparse", "dense"])
    assert [layer.experts is None for layer in mixed.layers] == [False, True]


def stored_in(config: ModelConfig, kind: FileKind) -> dict[str, StoredTensor]:
    """By canonical name, without the number of the first layer."""
    shard = Shard(
        start_layer=0,
        end_layer=1,
        num_layers=config.num_layers,
        has_embedding=False,
        has_head=False,
    )
    stored = stored_weights(config, weight_specs(config, shard), kind)
    return {each.canonical_name.removeprefix("layers.0."): each for each in stored}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            FileKind.HUGGING_FACE,
            {
                "attn.q_down.weight": "model.layers.0.self_attn.q_a_proj.weight",
                "attn.q_down_norm.weight": "model.layers.0.self_attn.q_a_layernorm.weight",
                "attn.q.weight": "model.layers.0.self_attn.q_b_proj.weight",
                "attn.latent.weight": "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
                "attn.k_rope.weight": "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
                "attn.latent_norm.weight": "model.layers.0.self_attn.kv_a_layernorm.weight",
                "attn.k_up.weight": "model.layers.0.self_attn.kv_b_proj.weight",
                "attn.v_up.weight": "model.layers.0.self_attn.kv_b_proj.weight",
                "attn.o.weight": "model.layers.0.self_attn.o_proj.weight",
            },
        ),
        (
            FileKind.GGUF,
            {
                "attn.q_down.weight": "blk.0.attn_q_a.weight",
                "attn.q_down_norm.weight": "blk.0.attn_q_a_norm.weight",
                "attn.q.weight": "blk.0.attn_q_b.weight",
                "attn.latent.weight": "blk.0.attn_kv_a_mqa.weight",
                "attn.k_rope.weight": "blk.0.attn_kv_a_mqa.weight",
                "attn.latent_norm.weight": "blk.0.attn_kv_a_norm.weight",
                "attn.k_up.weight": "blk.0.attn_k_b.weight",
                "attn.v_up.weight": "blk.0.attn_v_b.weight",
                "attn.o.weight": "blk.0.attn_output.weight",
            },
        ),
    ],
)
def test_names_and_rows(kind: FileKind, names: Mapping[str, str]) -> None:
    stored = stored_in(read(DEEPSEEK_V3), kind)
    assert {name: stored[name].stored_names for name in names} == {
        name: (each,) for name, each in names.items()
    }
    assert stored["attn.q.weight"].interleaved == InterleavedHeads(
        num_heads=128, head_dim=192, rotary_dim=64, start=128
    )
    assert stored["attn.latent.weight"].row_range == RowRange(start=0, num_rows=512)
    k_rope = stored["attn.k_rope.weight"]
    assert k_rope.row_range == RowRange(start=512, num_rows=64)
    assert k_rope.interleaved == InterleavedHeads(
        num_heads=1, head_dim=576, rotary_dim=64, start=512
    )


@pytest.mark.parametrize(
    ("kind", "name", "joint"),
    [
        (
            FileKind.HUGGING_FACE,
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.kv_b_proj.weight",
        ),
        (FileKind.GGUF, "blk.0.attn_q.weight", "blk.0.attn_kv_b.weight"),
    ],
)
def test_files_of_other_kinds(kind: FileKind, name: str, joint: str) -> None:
    """Queries of full rank, and keys and values that come up from the latent row in one."""
    config = with_stored_head(read(DEEPSEEK_V2_LITE), {name, joint}, kind)
    stored = stored_in(config, kind)
    assert stored["attn.q.weight"].stored_names == (name,)
    k_up, v_up = stored["attn.k_up.weight"], stored["attn.v_up.weight"]
    assert k_up.stored_names == v_up.stored_names == (joint,)
    assert k_up.num_matrices == v_up.num_matrices == 16
    assert (k_up.row_range, k_up.is_part_transposed) == (RowRange(start=0, num_rows=128), True)
    assert (v_up.row_range, v_up.is_part_transposed) == (RowRange(start=128, num_rows=128), False)


def test_rows_that_are_not_interleaved() -> None:
    for config in (DEEPSEEK_V3, GLM_4_7_FLASH):
        stored = stored_in(read(config, rope_interleave=False), FileKind.HUGGING_FACE)
        assert all(each.interleaved is None for each in stored.values())


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    config = read(DEEPSEEK_V3)
    assert skipped_parts(config, ["model.layers.61.eh_proj.weight"], FileKind.HUGGING_FACE)
    assert not skipped_parts(config, ["model.layers.60.eh_proj.weight"], FileKind.HUGGING_FACE)
    assert skipped_parts(config, ["blk.61.nextn.eh_proj.weight"], FileKind.GGUF)


@pytest.mark.parametrize(
    ("config", "changes", "named"),
    [
        (DEEPSEEK_V2_LITE, {"topk_method": "group_limited_greedy"}, "topk_method=group_limited"),
        (DEEPSEEK_V2_LITE, {"norm_topk_prob": True}, "norm_topk_prob=True"),
        (DEEPSEEK_V2_LITE, {"scoring_func": "sigmoid"}, "scoring_func=sigmoid"),
        (DEEPSEEK_V2_LITE, {"moe_layer_freq": 2}, "moe_layer_freq=2"),
        (DEEPSEEK_V2_LITE, {"mlp_bias": True}, "mlp_bias=True"),
        (DEEPSEEK_V3, {"topk_method": "greedy"}, "topk_method=greedy"),
        (DEEPSEEK_V3, {"scoring_func": "softmax"}, "scoring_func=softmax"),
        (DEEPSEEK_V3, {"moe_layer_freq": 2}, "moe_layer_freq=2"),
        (DEEPSEEK_V3, {"num_key_value_heads": 8}, "num_key_value_heads=8"),
        (DEEPSEEK_V3, {"head_dim": 128}, "head_dim=128"),
        (DEEPSEEK_V3, {"kv_lora_rank": 500}, "kv_lora_rank 500"),
        (DEEPSEEK_V3, {"sliding_window": 4096}, "sliding_window=4096"),
        (DEEPSEEK_V3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (GLM_4_7_FLASH, {"first_k_dense_replace": 3}, "first_k_dense_replace=3"),
        (GLM_4_7_FLASH, {"topk_method": "greedy"}, "topk_method=greedy"),
        (GLM_4_7_FLASH, {"mlp_layer_types": ["other"] * 47}, "mlp_layer_types other"),
    ],
)
def test_what_is_not_computed_is_refused(
    config: Mapping[str, Any], changes: Mapping[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(config, **changes)
    assert any(named in each for each in caught.value.missing)


@pytest.mark.parametrize(
    ("config", "changes", "problem"),
    [
        (DEEPSEEK_V3, {"n_group": 7}, "n_group must divide"),
        (DEEPSEEK_V3, {"topk_group": 9}, "topk_group must select enough"),
        (DEEPSEEK_V3, {"kv_lora_rank": 0}, "kv_lora_rank must be"),
        (GLM_4_7_FLASH, {"mlp_layer_types": ["sparse"]}, "mlp_layer_types has 1 entries"),
    ],
)
def test_what_makes_no_sense(
    config: Mapping[str, Any], changes: Mapping[str, Any], problem: str
) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read(config, **changes)


FLASH_KEYS: Mapping[str, Any] = {
    "attention.head_count": 20,
    "attention.head_count_kv": 1,
    "attention.key_length": 576,
    "attention.key_length_mla": 256,
    "attention.kv_lora_rank": 512,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.q_lora_rank": 768,
    "attention.value_length": 512,
    "attention.value_length_mla": 256,
    "block_count": 48,
    "context_length": 202_752,
    "embedding_length": 2048,
    "expert_count": 64,
    "expert_feed_forward_length": 1536,
    "expert_group_count": 1,
    "expert_group_used_count": 1,
    "expert_shared_count": 1,
    "expert_used_count": 4,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.8,
    "feed_forward_length": 10_240,
    "leading_dense_block_count": 1,
    "nextn_predict_layers": 1,
    "rope.dimension_count": 64,
    "rope.freq_base": 1_000_000.0,
    "vocab_size": 154_880,
}
"""Of a GGUF file of GLM-4.7-Flash, which does not say how experts are scored."""

YARN_KEYS: Mapping[str, Any] = {
    "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096,
    "rope.scaling.type": "yarn",
    "rope.scaling.yarn_log_multiplier": 0.1,
}


def read_gguf(*, vocab_size: int = 154_880, **changes: Any) -> ModelConfig:
    """A file with the keys of GLM-4.7-Flash and changes; ``...`` removes a key."""
    values = {**FLASH_KEYS, **changes}
    wide: NDArray[np.float32] = np.zeros((vocab_size, 1), dtype=np.float32)
    one: NDArray[np.float32] = np.zeros((1, 1), dtype=np.float32)
    tensors = {"token_embd.weight": wide, "blk.0.attn_q_a.weight": one}
    for layer in range(1, 47):
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = one
        tensors[f"blk.{layer}.exp_probs_b.bias"] = one
        tensors[f"blk.{layer}.ffn_up_shexp.weight"] = one
    metadata = {f"deepseek2.{key}": each for key, each in values.items() if each is not ...}
    return config_from_gguf(
        {"general.architecture": "deepseek2", **metadata}, StateDictSource(tensors), path="m.gguf"
    )


def test_gguf_files_of_glm_4_7_flash() -> None:
    config = read_gguf()
    assert config.num_layers == 47
    assert config.layers[0].attention == LatentAttentionConfig(
        num_heads=20,
        query_rank=768,
        latent_rank=512,
        rope_dim=64,
        nope_dim=192,
        value_dim=256,
        scale=1 / 16,
    )
    experts = config.layers[1].experts
    assert experts is not None
    assert (experts.score, experts.share_scale) == (ExpertScore.SIGMOID, 1.8)
    assert experts.norm_topk_prob
    # As llama.cpp, which knows the model by its vocabulary.
    other = read_gguf(vocab_size=1000).layers[1].experts
    assert other is not None
    assert other.score is ExpertScore.SOFTMAX
    explicit = read_gguf(vocab_size=1000, expert_gating_func=2).layers[1].experts
    assert explicit is not None
    assert explicit.score is ExpertScore.SIGMOID


def test_yarn_in_gguf_files() -> None:
    config = read_gguf(**YARN_KEYS)
    attention = config.layers[0].attention
    assert isinstance(attention, LatentAttentionConfig)
    assert attention.scale == pytest.approx((0.1 * math.log(40) + 1) ** 2 / 16)
    assert config.ropes[0].attention_factor == 1


def test_old_gguf_files() -> None:
    old: dict[str, Any] = {
        "attention.head_count_kv": 20,
        "attention.key_length": 256,
        "attention.key_length_mla": ...,
        "attention.value_length": 256,
        "attention.value_length_mla": ...,
    }
    assert read_gguf(**old).layers == read_gguf().layers


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"expert_gating_func": 1, "expert_group_count": 8}, "expert_group_count=8 with softmax"),
        ({"expert_gating_func": 3}, "expert_gating_func=3"),
        ({**YARN_KEYS, "rope.scaling.yarn_log_multiplier": ...}, "without deepseek2.rope"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, "rope scaling linear"),
        ({"attention.temperature_scale": 0.1}, "deepseek2.attention.temperature_scale=0.1"),
        ({"attention.value_length_mla": 100}, "attention.value_length_mla 100"),
    ],
)
def test_what_gguf_files_may_not_say(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read_gguf(**changes)
    assert any(named in each for each in caught.value.missing)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"attention.key_length": 256}, "attention.key_length must be 576"),
        ({"attention.head_count_kv": 20}, "attention.head_count_kv must be 1"),
        ({"attention.value_length": 256}, "attention.value_length must be 512"),
        ({"attention.key_length_mla": 64}, "attention.key_length_mla must be more than 64"),
        ({"nextn_predict_layers": 48}, "nextn_predict_layers must be less than 48"),
    ],
)
def test_gguf_files_that_make_no_sense(changes: Mapping[str, Any], problem: str) -> None:
    with pytest.raises(ModelFileError, match=problem):
        read_gguf(**changes)
