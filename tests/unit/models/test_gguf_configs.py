"""What GGUF metadata mean, with keys as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models.configs import AlikeLayers, make_config
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.registry import config_from_gguf
from potluck.types.model import ExpertsConfig, RopeConfig, RopeScaling

LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.file_type": 15,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.key_length": 24,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.attention.value_length": 24,
    "llama.block_count": 2,
    "llama.context_length": 8192,
    "llama.embedding_length": 96,
    "llama.feed_forward_length": 160,
    "llama.rope.dimension_count": 24,
    "llama.rope.freq_base": 500000.0,
    "llama.vocab_size": 50,
    "tokenizer.ggml.model": "gpt2",
}


def source(*names: str, factors: Any = None) -> StateDictSource:
    """An embedding of 50 tokens, and tensors of one element under ``names``."""
    tensors: dict[str, NDArray[np.float32]] = {
        "token_embd.weight": np.zeros((50, 96), dtype=np.float32)
    }
    tensors |= {name: np.zeros(1, dtype=np.float32) for name in names}
    if factors is not None:
        tensors["rope_freqs.weight"] = np.asarray(factors, dtype=np.float32)
    return StateDictSource(tensors)


def read(
    changes: Mapping[str, Any] | None = None,
    tensors: StateDictSource | None = None,
    *,
    architecture: str = "llama",
) -> AlikeLayers:
    """``LLAMA`` with ``changes`` (``...`` removes a key) under another architecture's prefix."""
    merged = {**LLAMA, **{f"llama.{key}": value for key, value in (changes or {}).items()}}
    metadata = {
        key.replace("llama.", f"{architecture}.", 1): value
        for key, value in merged.items()
        if value is not ...
    }
    metadata["general.architecture"] = architecture
    return AlikeLayers(
        config_from_gguf(metadata, tensors or source("output.weight"), path="some.gguf")
    )


def test_llama() -> None:
    assert read().config == make_config(
        family="llama",
        num_layers=2,
        hidden_size=96,
        intermediate_size=160,
        num_heads=4,
        num_kv_heads=2,
        head_dim=24,
        vocab_size=50,
        max_context_tokens=8192,
        rope=RopeConfig(theta=500000.0, rotary_dim=24),
    )


def test_defaults() -> None:
    absent = (
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "rope.freq_base",
        "vocab_size",
    )
    config = read(dict.fromkeys(absent, ...), source())
    assert config.num_kv_heads == 4
    assert config.head_dim == 24
    assert config.rope == RopeConfig(theta=10000.0, rotary_dim=24)
    assert config.vocab_size == 50
    assert config.tied_head


def test_llama_biases_are_told_by_the_tensors() -> None:
    config = read(tensors=source("blk.0.attn_q.bias"))
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, False)
    config = read(tensors=source("blk.0.attn_output.bias", "blk.0.ffn_gate.bias"))
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (False, True, True)


def test_qwen_families() -> None:
    qwen2, qwen3 = read(architecture="qwen2"), read(architecture="qwen3")
    assert (qwen2.family, qwen2.qkv_bias, qwen2.qk_norm) == ("qwen2", True, False)
    assert (qwen3.family, qwen3.qkv_bias, qwen3.qk_norm) == ("qwen3", False, True)


def test_a_window_covers_every_layer() -> None:
    assert read({"attention.sliding_window": 4096}).sliding_windows == (4096, 4096)
    assert read({"attention.sliding_window": 0}).sliding_windows == (None, None)


def test_frequency_factors_are_read_from_their_tensor() -> None:
    factors = [1.0] * 6 + [2.5] * 3 + [8.0] * 3
    config = read(tensors=source(factors=factors))
    assert config.rope == RopeConfig(
        theta=500000.0, rotary_dim=24, frequency_factors=tuple(factors)
    )


@pytest.mark.parametrize(
    ("factors", "named"),
    [([1.0] * 11, "(12,)"), ([1.0] * 11 + [0.0], "non-positive"), ([np.nan] * 12, "non-positive")],
    ids=["short", "zero", "nan"],
)
def test_bad_frequency_factors(factors: list[float], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(tensors=source(factors=factors))
    assert "rope_freqs.weight" in caught.value.message
    assert named in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scale_linear": 4.0},
    ],
)
def test_linear_rope(changes: dict[str, Any]) -> None:
    expected = RopeConfig(theta=500000.0, rotary_dim=24, scaling=RopeScaling.LINEAR, factor=4.0)
    assert read(changes).rope == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.type": "linear"},
        {"rope.scaling.factor": 0.0},
    ],
)
def test_rope_that_is_not_scaled(changes: dict[str, Any]) -> None:
    assert read(changes).rope == RopeConfig(theta=500000.0, rotary_dim=24)


def test_yarn_needs_frequencies_that_fall() -> None:
    scaling = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
    with pytest.raises(ModelFileError, match=r"llama\.rope\.freq_base must be above 1 with rope"):
        read({**scaling, "rope.freq_base": 1.0})


def test_neutral_values_are_no_obstacle() -> None:
    read(
        {
            "expert_count": 0,
            "expert_used_count": 0,
            "use_parallel_residual": False,
            "attention.causal": True,
            "rope.scaling.attn_factor": 1.0,
            "rope.scaling.original_context_length": 4096,
            "tensor_data_layout": "Meta AI original pth",
        }
    )


def test_lists_of_equal_numbers_are_one_number() -> None:
    lists = {"attention.head_count": 4, "attention.head_count_kv": 2, "feed_forward_length": 160}
    listed = read({key: [number] * 2 for key, number in lists.items()})
    assert listed.config == read(lists).config


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"feed_forward_length": [160, 96]}, "llama.feed_forward_length=[160, 96]"),
        ({"feed_forward_length": [160]}, "llama.feed_forward_length=[160]"),
        ({"attention.head_count": []}, "llama.attention.head_count=[]"),
        ({"expert_count": 8}, "llama.expert_count=8"),
        ({"attention.causal": False}, "llama.attention.causal=False"),
        ({"attn_logit_softcapping": 50.0}, "llama.attn_logit_softcapping=50.0"),
        ({"something.new": 3}, "llama.something.new=3"),
        ({"attention.head_count_kv": [2, 4]}, "llama.attention.head_count_kv=[2, 4]"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}, "rope scaling longrope"),
        ({"rope.scaling.attn_factor": 1.2}, "llama.rope.scaling.attn_factor=1.2"),
        ({"attention.value_length": 32}, "attention.value_length=32"),
        ({"attention.key_length": 20}, "attention.key_length 20"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(changes)
    assert named in caught.value.missing[0]


def test_words_of_the_file_are_short_and_printable_in_messages() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read({"something.new": "\x1b[31m\n" * 1000})
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_values_that_are_not_the_architecture_s_are_not_read() -> None:
    class Trap(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            assert not key.startswith("tokenizer.")
            return super().__getitem__(key)

    config_from_gguf(Trap(LLAMA), source("output.weight"), path="some.gguf")


def test_a_window_in_some_layers_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match=r"qwen2.attention.sliding_window=64"):
        read({"attention.sliding_window": 64}, architecture="qwen2")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"block_count": ...}, "llama.block_count is missing"),
        ({"block_count": 0}, "llama.block_count must be an integer"),
        ({"block_count": "2"}, "llama.block_count must be an integer"),
        ({"attention.head_count": 0}, "llama.attention.head_count must be an integer"),
        ({"attention.head_count_kv": 3}, "attention.head_count_kv is 3"),
        ({"attention.layer_norm_rms_epsilon": ...}, "layer_norm_rms_epsilon is missing"),
        ({"embedding_length": 98, "attention.key_length": ...}, "embedding_length 98"),
        ({"feed_forward_length": 2**33}, "llama.feed_forward_length must be an integer"),
    ],
)
def test_a_malformed_file_is_refused_by_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(changes)
    assert caught.value.message.startswith("some.gguf: ")
    assert named in caught.value.message


EXPERTS = {
    "expert_count": 8,
    "expert_feed_forward_length": 48,
    "expert_used_count": 2,
    "expert_weights_scale": 1.0,
}
ROUTERS = ("blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight")


def read_experts(
    changes: Mapping[str, Any], *routers: str
) -> tuple[ExpertsConfig | None, tuple[bool, ...]]:
    config = read(
        {**EXPERTS, **changes}, source("output.weight", *routers), architecture="qwen3moe"
    )
    assert (config.family, config.qk_norm) == ("qwen3_moe", True)
    return config.experts, config.has_experts


def test_experts() -> None:
    wanted = ExpertsConfig(
        num_experts=8,
        num_experts_per_token=2,
        width=48,
        norm_topk_prob=True,
    )
    everywhere = (True, True)
    assert read_experts({}, *ROUTERS) == (wanted, everywhere)
    assert read_experts({"expert_gating_func": 1, "expert_weights_norm": True}, *ROUTERS) == (
        wanted,
        everywhere,
    )
    kept = read_experts({"expert_weights_norm": False}, *ROUTERS)
    assert kept == (replace(wanted, norm_topk_prob=False), everywhere)
    assert read_experts({}, ROUTERS[1]) == (wanted, (False, True))
    assert read_experts({}) == (None, (False, False))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"expert_count": ...}, "qwen3moe.expert_count is missing"),
        ({"expert_used_count": 9}, "qwen3moe.expert_used_count must be at most 8"),
        ({"expert_feed_forward_length": 0}, "qwen3moe.expert_feed_forward_length must be"),
        ({"expert_weights_norm": 1}, "qwen3moe.expert_weights_norm must be true or false"),
    ],
)
def test_malformed_experts_are_refused_by_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_experts(changes, *ROUTERS)
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"expert_gating_func": 2}, "expert_gating_func=2"),
        ({"expert_shared_count": 1}, "expert_shared_count=1"),
        ({"expert_weights_scale": 2.5}, "expert_weights_scale=2.5"),
        ({"expert_feed_forward_length": 40}, "not a multiple of 16"),
    ],
)
def test_other_experts_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named):
        read_experts(changes, *ROUTERS)


def test_the_embedding_must_be_there() -> None:
    no_embedding = StateDictSource({"output.weight": np.zeros((50, 96), dtype=np.float32)})
    with pytest.raises(ModelFileError, match=r"token_embd\.weight is missing"):
        read(tensors=no_embedding)
    vector = StateDictSource({"token_embd.weight": np.zeros(50, dtype=np.float32)})
    with pytest.raises(ModelFileError, match=r"token_embd\.weight has the shape \(50,\)"):
        read(tensors=vector)


def test_unknown_architecture() -> None:
    with pytest.raises(UnsupportedModelError, match="mamba") as caught:
        read(architecture="mamba")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("supported: llama, qwen2, qwen3, qwen3moe")
    with pytest.raises(ModelFileError, match=r"general\.architecture is missing"):
        config_from_gguf({}, source(), path="some.gguf")
