"""What the files of Qwen3-Next and Qwen3.5 mean: published models, names, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.models.gated_delta_configs import (
    QWEN3_5_0_8B,
    QWEN3_5_4B,
    QWEN3_5_35B_A3B,
    QWEN3_8_27B,
    QWEN3_NEXT_80B_A3B,
)
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.names import FileKind
from potluck.models.program import build_program, weight_specs
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    refuse_unread_tensors,
    skipped_parts,
    stored_weights,
    with_stored_head,
)
from potluck.models.rope import empty_rope_tables
from potluck.types.model import (
    AttentionConfig,
    ExpertsConfig,
    GatedDeltaConfig,
    HeadNorm,
    MlpConfig,
    ModelConfig,
    RopeConfig,
)
from potluck.types.program import Shard
from potluck.types.tensor import StoredTensor


def read(config: Mapping[str, Any], **changes: Any) -> ModelConfig:
    """The configuration with changes of the text part; ``...`` removes a key."""

    def changed(values: Mapping[str, Any]) -> Mapping[str, Any]:
        merged = {**values, **changes}
        return {key: each for key, each in merged.items() if each is not ...}

    if "text_config" in config:
        return config_from_hugging_face({**config, "text_config": changed(config["text_config"])})
    return config_from_hugging_face(changed(config))


def num_weights(config: ModelConfig) -> int:
    specs = weight_specs(config, Shard.whole(config.num_layers))
    return sum(math.prod(spec.shape) for spec in specs)


def state_bytes(config: ModelConfig) -> int:
    program = build_program(
        config,
        Shard.whole(config.num_layers),
        context_tokens=16,
        ropes=empty_rope_tables(config, 16),
    )
    return sum(state.num_bytes for state in program.states)


@pytest.mark.parametrize(
    ("config", "billions", "state_mib"),
    [
        # llama.cpp#19794 and #21831 print the states of the first and the fourth.
        (QWEN3_NEXT_80B_A3B, 79.7, 75.4),
        (QWEN3_5_0_8B, 0.75, 19.27),
        (QWEN3_5_4B, 4.2, 50.25),
        (QWEN3_5_35B_A3B, 34.7, 62.8),
        (QWEN3_8_27B, 26.9, 149.6),
    ],
    ids=["qwen3-next", "0.8b", "4b", "35b-a3b", "27b"],
)
def test_published_models_have_as_many_weights_as_their_cards_say(
    config: Mapping[str, Any], billions: float, state_mib: float
) -> None:
    read_config = read(config)
    assert num_weights(read_config) / 1e9 == pytest.approx(billions, abs=0.1)
    assert state_bytes(read_config) / 2**20 == pytest.approx(state_mib, abs=0.05)


def test_qwen3_next() -> None:
    config = read(QWEN3_NEXT_80B_A3B)
    assert config.family == "qwen3_next"
    assert config.layers[3].attention == AttentionConfig(
        num_heads=16,
        num_kv_heads=2,
        head_dim=256,
        scale=1 / 16,
        head_norm=HeadNorm.HEAD,
        has_output_gate=True,
    )
    assert config.layers[0].recurrence == GatedDeltaConfig(
        num_heads=32, num_key_heads=16, key_dim=128, value_dim=128, kernel=4
    )
    assert [layer.recurrence is None for layer in config.layers] == [False, False, False, True] * 12
    assert all((layer.attention is None) != (layer.recurrence is None) for layer in config.layers)
    assert config.ropes == (RopeConfig(theta=1e7, rotary_dim=64),)
    assert {layer.experts for layer in config.layers} == {
        ExpertsConfig(
            num_experts=512,
            num_experts_per_token=10,
            width=512,
            norm_topk_prob=True,
            shared=MlpConfig(width=512),
            has_shared_gate=True,
        )
    }


def test_qwen3_5() -> None:
    config = read(QWEN3_8_27B)
    assert (config.family, config.num_layers, config.tied_head) == ("qwen3_5_text", 64, False)
    assert config.layers[4].recurrence == GatedDeltaConfig(
        num_heads=48, num_key_heads=16, key_dim=128, value_dim=128, kernel=4
    )
    assert config.layers[4].mlp == MlpConfig(width=17_408)
    assert config.ropes == (RopeConfig(theta=1e7, rotary_dim=64),)
    assert read(QWEN3_5_4B).tied_head


def test_a_text_model_says_the_same_as_one_that_sees() -> None:
    for config, architecture in (
        (QWEN3_5_4B, "Qwen3_5ForCausalLM"),
        (QWEN3_5_35B_A3B, "Qwen3_5MoeForCausalLM"),
    ):
        text = {**config["text_config"], "architectures": [architecture]}
        assert config_from_hugging_face(text) == read(config)


def stored(config: ModelConfig, kind: FileKind) -> dict[str, StoredTensor]:
    weights = weight_specs(config, Shard.whole(config.num_layers))
    return {each.canonical_name: each for each in stored_weights(config, weights, kind)}


def test_fused_matrices_are_read_in_parts() -> None:
    tensors = stored(read(QWEN3_NEXT_80B_A3B), FileKind.HUGGING_FACE)
    qkv, gate = tensors["layers.0.delta.qkv.weight"], tensors["layers.0.delta.gate.weight"]
    assert qkv.stored_names == ("model.layers.0.linear_attn.in_proj_qkvz.weight",)
    assert qkv.rows is not None
    assert gate.rows is not None
    # 16 groups of a query, a key, two values and two gates of 128 rows each.
    assert qkv.rows[:2] == (range(128), range(768, 896))
    assert qkv.rows[16:18] == (range(128, 256), range(896, 1024))
    assert qkv.rows[32:34] == (range(256, 512), range(1024, 1280))
    assert gate.rows[:2] == (range(512, 768), range(1280, 1536))
    everything = [row for run in (*qkv.rows, *gate.rows) for row in run]
    assert sorted(everything) == list(range(12_288))
    beta, decay = tensors["layers.0.delta.beta.weight"], tensors["layers.0.delta.decay.weight"]
    assert beta.rows is not None
    assert decay.rows is not None
    assert (beta.rows[1], decay.rows[1]) == (range(4, 6), range(6, 8))


def test_norms_are_shifted_but_for_that_of_gated_delta_nets() -> None:
    tensors = stored(read(QWEN3_5_4B), FileKind.HUGGING_FACE)
    shifted = {name for name, tensor in tensors.items() if tensor.plus_one}
    assert shifted == {name for name in tensors if "norm" in name and "delta" not in name}
    assert tensors["layers.0.delta.rate.weight"].is_negative_exp
    assert not any(each.plus_one for each in stored(read(QWEN3_5_4B), FileKind.GGUF).values())


def names_of(config: ModelConfig) -> set[str]:
    return {
        name
        for tensor in stored(config, FileKind.HUGGING_FACE).values()
        for name in tensor.stored_names
    }


def test_names_of_models_that_see() -> None:
    config = read(QWEN3_5_35B_A3B)
    prefix = "model.language_model."
    fused = {f"{prefix}embed_tokens.weight", "lm_head.weight", f"{prefix}norm.weight"}
    fused |= {f"{prefix}layers.0.mlp.experts.gate_up_proj"}
    found = with_stored_head(config, fused, FileKind.HUGGING_FACE)
    assert found.name_variants == ("fused experts",)
    names = names_of(found)
    assert fused < names
    assert f"{prefix}layers.39.mlp.experts.down_proj" in names
    assert not any("experts.0." in name for name in names)
    apart = with_stored_head(
        config, {f"{prefix}embed_tokens.weight", "lm_head.weight"}, FileKind.HUGGING_FACE
    )
    assert f"{prefix}layers.0.mlp.experts.255.up_proj.weight" in names_of(apart)
    others = {"model.visual.blocks.0.attn.qkv.weight", "mtp.fc.weight", "mtp.norm.weight"}
    refuse_unread_tensors(found, names | others, FileKind.HUGGING_FACE)
    assert skipped_parts(found, others, FileKind.HUGGING_FACE) == (
        "multi-token prediction layers",
        "a vision tower",
    )


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"attn_output_gate": False}, UnsupportedModelError, "attn_output_gate"),
        ({"output_gate_type": "sigmoid"}, UnsupportedModelError, "output_gate_type"),
        ({"num_experts": 8}, UnsupportedModelError, "num_experts"),
        ({"hidden_act": "gelu"}, UnsupportedModelError, "hidden_act"),
        ({"layer_types": ["linear_attention"] * 31}, ModelFileError, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 32}, UnsupportedModelError, "sliding_attention"),
        ({"linear_num_key_heads": 7}, ModelFileError, "linear_num_value_heads"),
        ({"linear_value_head_dim": 2**19}, ModelFileError, "linear_num_value_heads"),
        ({"linear_conv_kernel_dim": 1}, ModelFileError, "linear_conv_kernel_dim"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, UnsupportedModelError, "dynamic"),
    ],
    ids=str,
)
def test_what_is_refused(changes: Mapping[str, Any], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        read(QWEN3_5_4B, **changes)


GGUF: Mapping[str, Any] = {
    "attention.head_count": 16,
    "attention.head_count_kv": 4,
    "attention.key_length": 256,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.value_length": 256,
    "block_count": 33,
    "context_length": 262_144,
    "embedding_length": 2560,
    "feed_forward_length": 9216,
    "full_attention_interval": 4,
    "nextn_predict_layers": 1,
    "rope.dimension_count": 64,
    "rope.dimension_sections": [11, 11, 10, 0],
    "rope.freq_base": 10_000_000.0,
    "ssm.conv_kernel": 4,
    "ssm.group_count": 16,
    "ssm.inner_size": 4096,
    "ssm.state_size": 128,
    "ssm.time_step_rank": 32,
}


def read_gguf(**changes: Any) -> ModelConfig:
    values = {**GGUF, **changes}
    metadata = {f"qwen35.{key}": value for key, value in values.items() if value is not ...}
    source = StateDictSource({"token_embd.weight": np.zeros((50, 2560), np.float32)})
    return config_from_gguf({"general.architecture": "qwen35", **metadata}, source, path="m.gguf")


def test_metadata_of_gguf_files() -> None:
    config = read_gguf()
    assert config.num_layers == 32
    assert config.layers[0].recurrence == GatedDeltaConfig(
        num_heads=32, num_key_heads=16, key_dim=128, value_dim=128, kernel=4, is_tiled=True
    )
    kinds = [layer.recurrence is not None for layer in config.layers]
    assert kinds == [True, True, True, False] * 8
    listed = [block % 2 == 0 for block in range(33)]
    changed = read_gguf(**{"attention.recurrent_layers": listed})
    assert [layer.recurrence is not None for layer in changed.layers] == listed[:32]
    assert [layer.recurrence is not None for layer in read_gguf(full_attention_interval=2).layers][
        :4
    ] == [True, False, True, False]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"nextn_predict_layers": 33}, "nextn_predict_layers"),
        ({"ssm.inner_size": 4095}, "ssm.inner_size"),
        ({"ssm.group_count": 5}, "ssm.time_step_rank"),
        ({"ssm.state_size": ...}, "ssm.state_size"),
        ({"attention.recurrent_layers": [True]}, "attention.recurrent_layers"),
    ],
    ids=str,
)
def test_metadata_that_make_no_sense(changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        read_gguf(**changes)
