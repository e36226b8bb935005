"""What config.json means, family by family; sizes are those of published models."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.models.configs import AlikeLayers, make_config

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.registry import config_from_hugging_face
from potluck.types.model import ExpertsConfig, RopeConfig, RopeScaling

LLAMA_3_2_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "vocab_size": 128256,
}
MISTRAL_7B: dict[str, Any] = {
    "architectures": ["MistralForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
QWEN2_5_0_5B: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "max_window_layers": 21,
    "model_type": "qwen2",
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def read(base: dict[str, Any], **changes: Any) -> AlikeLayers:
    """``base`` with ``changes``; the value ``...`` removes a key."""
    merged = {key: value for key, value in {**base, **changes}.items() if value is not ...}
    return AlikeLayers(config_from_hugging_face(merged, path="somewhere/config.json"))


def test_llama() -> None:
    assert read(LLAMA_3_2_1B).config == make_config(
        family="llama",
        num_layers=16,
        hidden_size=2048,
        intermediate_size=8192,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        vocab_size=128256,
        max_context_tokens=131072,
        rope=RopeConfig(
            theta=500000.0,
            rotary_dim=64,
            scaling=RopeScaling.LLAMA3,
            factor=32.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_context_tokens=8192,
        ),
        tied_head=True,
    )


def test_layer_types_that_are_all_full_attention_change_nothing() -> None:
    plain = {**LLAMA_3_2_1B, "num_hidden_layers": 4}
    listed = plain | {"layer_types": ["full_attention"] * 4}
    assert config_from_hugging_face(listed, path="x") == config_from_hugging_face(plain, path="x")


def test_llama_biases() -> None:
    config = read(LLAMA_3_2_1B, attention_bias=True, mlp_bias=True)
    assert config.qkv_bias
    assert config.output_bias
    assert config.mlp_bias


def test_llama_defaults() -> None:
    absent = ("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_scaling", "rope_theta")
    config = read(
        LLAMA_3_2_1B, **dict.fromkeys((*absent, "tie_word_embeddings", "hidden_act"), ...)
    )
    assert config.num_kv_heads == 32
    assert config.head_dim == 64
    assert config.norm_epsilon == 1e-6
    assert config.rope == RopeConfig(theta=10000.0, rotary_dim=64)
    assert not config.tied_head


def test_mistral_slides_in_every_layer() -> None:
    assert read(MISTRAL_7B).sliding_windows == (4096,) * 32
    assert read(MISTRAL_7B, sliding_window=None).sliding_windows == (None,) * 32
    assert read(MISTRAL_7B, sliding_window=...).sliding_windows == (4096,) * 32
    assert read(MISTRAL_7B, num_key_value_heads=...).num_kv_heads == 8
    assert read(MISTRAL_7B, num_key_value_heads=None).num_kv_heads == 32


def test_mistral_head_size() -> None:
    assert read(MISTRAL_7B, hidden_size=5120, head_dim=128).head_dim == 128
    assert read(MISTRAL_7B, head_dim=None).head_dim == 128


def test_qwen2() -> None:
    config = read(QWEN2_5_0_5B)
    assert config.head_dim == 64
    assert config.qkv_bias
    assert not config.output_bias
    assert not config.qk_norm
    assert config.sliding_windows == (None,) * 24
    assert config.rope == RopeConfig(theta=1e6, rotary_dim=64)


def test_qwen2_slides_from_max_window_layers_on() -> None:
    config = read(QWEN2_5_0_5B, use_sliding_window=True, sliding_window=1024)
    assert config.sliding_windows == (None,) * 21 + (1024,) * 3
    config = read(QWEN2_5_0_5B, use_sliding_window=True, max_window_layers=0)
    assert config.sliding_windows == (32768,) * 24


def test_layer_types_say_which_layers_slide() -> None:
    kinds = ["full_attention", "sliding_attention"]
    config = read(
        QWEN3_0_6B,
        use_sliding_window=True,
        sliding_window=512,
        num_hidden_layers=4,
        layer_types=kinds * 2,
    )
    assert config.sliding_windows == (None, 512, None, 512)


def test_qwen3() -> None:
    config = read(QWEN3_0_6B)
    assert config.head_dim == 128
    assert config.qk_norm
    assert not config.qkv_bias
    assert config.sliding_windows == (None,) * 28
    assert read(QWEN3_0_6B, head_dim=...).head_dim == 128


def test_qwen3_moe() -> None:
    config = read(QWEN3_30B_A3B)
    assert config.experts == ExpertsConfig(
        num_experts=128,
        num_experts_per_token=8,
        width=768,
        norm_topk_prob=True,
    )
    assert config.has_experts == (True,) * 48
    assert (config.head_dim, config.num_kv_heads, config.qk_norm) == (128, 4, True)
    assert config.sliding_windows == (None,) * 48
    newer = read(QWEN3_30B_A3B, num_experts=..., num_local_experts=128)
    assert newer.experts == config.experts
    not_normalized = read(QWEN3_30B_A3B, norm_topk_prob=...).experts
    assert not_normalized is not None
    assert not not_normalized.norm_topk_prob


def test_which_layers_have_experts() -> None:
    some = read(QWEN3_30B_A3B, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[0, 3])
    assert some.has_experts == (False, True, False, False, False, True)
    assert read(QWEN3_30B_A3B, num_hidden_layers=6, decoder_sparse_step=7).experts is None
    assert read(QWEN3_30B_A3B, num_experts=0).experts is None


def test_qwen3_moe_slides_in_every_layer_or_in_none() -> None:
    sliding = read(QWEN3_30B_A3B, use_sliding_window=True, sliding_window=512)
    assert sliding.sliding_windows == (512,) * 48
    assert read(QWEN3_30B_A3B, sliding_window=512).sliding_windows == (None,) * 48


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts": ...}, "num_experts is missing"),
        ({"num_experts": "many"}, "num_experts must be an integer"),
        ({"num_experts": 4096}, "num_experts in 48 layers makes more than 196608 tensors"),
        ({"num_experts_per_tok": ...}, "num_experts_per_tok is missing"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok must be an integer"),
        ({"num_experts_per_tok": 129}, "num_experts_per_tok must be at most 128"),
        ({"moe_intermediate_size": ...}, "moe_intermediate_size is missing"),
        ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step must be an integer"),
        ({"mlp_only_layers": 3}, "mlp_only_layers must be a list of integers"),
        ({"mlp_only_layers": [1, -1]}, "mlp_only_layers must be a list of integers"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers must be a list of integers"),
    ],
)
def test_malformed_experts_are_refused_by_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(QWEN3_30B_A3B, **changes)
    assert named in caught.value.message


@pytest.mark.parametrize("changes", [{"moe_intermediate_size": 760}, {"hidden_size": 2056}])
def test_experts_that_are_no_whole_panels_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match="not a multiple of 16"):
        read(QWEN3_30B_A3B, **changes)


def test_rope_parameters_of_newer_files() -> None:
    config = read(
        LLAMA_3_2_1B,
        rope_scaling=...,
        rope_theta=...,
        rope_parameters={**LLAMA_3_2_1B["rope_scaling"], "rope_theta": 500000.0},
    )
    assert config.config == read(LLAMA_3_2_1B).config


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_linear_rope(key: str) -> None:
    config = read(MISTRAL_7B, rope_scaling={key: "linear", "factor": 4})
    assert config.rope == RopeConfig(
        theta=10000.0, rotary_dim=128, scaling=RopeScaling.LINEAR, factor=4.0
    )


@pytest.mark.parametrize("kind", ["default", "none"])
def test_rope_that_is_not_scaled(kind: str) -> None:
    config = read(MISTRAL_7B, rope_scaling={"rope_type": kind, "rope_theta": 5e4})
    assert config.rope == RopeConfig(theta=5e4, rotary_dim=128)


def test_llama3_rope_without_a_trained_length_takes_the_whole_context() -> None:
    scaling = {**LLAMA_3_2_1B["rope_scaling"]}
    del scaling["original_max_position_embeddings"]
    assert read(LLAMA_3_2_1B, rope_scaling=scaling).rope.original_context_tokens == 131072


def test_family_by_model_type_or_architecture_alone() -> None:
    assert read(QWEN3_0_6B, architectures=...).family == "qwen3"
    assert read(QWEN3_0_6B, model_type=...).family == "qwen3"


def test_an_unknown_family_is_named_as_the_file_names_it() -> None:
    for changes, message in (
        (
            {"architectures": ["Idefics3ForConditionalGeneration"], "model_type": "idefics3"},
            "models of the architecture Idefics3ForConditionalGeneration (model_type idefics3) are "
            "not supported",
        ),
        ({"architectures": ..., "model_type": "idefics3"}, "models of the type idefics3 are not"),
        ({"architectures": ["A", "B"], "model_type": ...}, "models of the architecture A, B are"),
    ):
        with pytest.raises(UnsupportedModelError) as caught:
            read(LLAMA_3_2_1B, **changes)
        assert caught.value.message.startswith(message)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MambaForCausalLM"], "model_type": "mamba"}, "MambaForCausalLM"),
        ({"architectures": ["LlamaForTokenClassification"]}, "LlamaForTokenClassification"),
        ({"architectures": ..., "model_type": "mamba"}, "mamba"),
        ({"model_type": "qwen2"}, "qwen2"),
    ],
)
def test_unknown_family(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        read(LLAMA_3_2_1B, **changes)
    assert "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM" in caught.value.hint
    assert named in caught.value.missing[0]


LLAMA3_SCALING = LLAMA_3_2_1B["rope_scaling"]
YARN_SCALING = {"type": "yarn", "factor": 4.0}
LONG_SCALING = {"type": "longrope", "long_factor": [1.0] * 32, "short_factor": [1.0] * 32}


@pytest.mark.parametrize(
    ("base", "changes", "named"),
    [
        (LLAMA_3_2_1B, {"hidden_act": "gelu"}, "hidden_act=gelu"),
        (LLAMA_3_2_1B, {"sliding_window": 4096}, "sliding_window=4096"),
        (LLAMA_3_2_1B, {"quantization_config": {"bits": 4}}, "quantization_config={bits}"),
        (
            LLAMA_3_2_1B,
            {"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}},
            "quantization_config.fmt=e5m2",
        ),
        (
            LLAMA_3_2_1B,
            {"quantization_config": {"bits": 4, "quant_method": "hqq"}},
            "quantization_config=hqq",
        ),
        (
            LLAMA_3_2_1B,
            {"compression_config": {"quant_method": "compressed-tensors"}},
            "compression_config=compressed-tensors",
        ),
        (LLAMA_3_2_1B, {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        (LLAMA_3_2_1B, {"num_local_experts": 8}, "num_local_experts=8"),
        (LLAMA_3_2_1B, {"final_logit_softcapping": 30.0}, "final_logit_softcapping=30.0"),
        (LLAMA_3_2_1B, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        (LLAMA_3_2_1B, {"head_dim": 20}, "head_dim 20"),
        (LLAMA_3_2_1B, {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "dynamic"),
        (LLAMA_3_2_1B, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        (
            LLAMA_3_2_1B,
            {"rope_scaling": {**LLAMA3_SCALING, "attention_factor": 2.0}},
            "attention_factor in rope scaling llama3",
        ),
        (
            LLAMA_3_2_1B,
            {"rope_parameters": {"partial_rotary_factor": 0.25}, "rope_scaling": None},
            "partial_rotary_factor=0.25",
        ),
        (
            QWEN2_5_0_5B,
            {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}},
            "mrope_section",
        ),
        (QWEN2_5_0_5B, {"rope_scaling": {"type": "mrope"}}, "rope scaling mrope"),
        (QWEN2_5_0_5B, {"use_mrope": True}, "use_mrope=True"),
        (QWEN2_5_0_5B, {"dual_chunk_attention_config": {"a": 1}}, "dual_chunk_attention_config"),
        (QWEN2_5_0_5B, {"attention_bias": False}, "attention_bias=False"),
        (
            QWEN3_0_6B,
            {"rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
            "full_attention in rope scaling default",
        ),
        (QWEN3_0_6B, {"num_experts": 128}, "num_experts=128"),
        (
            QWEN3_0_6B,
            {"layer_types": ["linear_attention"] * 28},
            "layer_types linear_attention",
        ),
        (MISTRAL_7B, {"attention_bias": True}, "attention_bias=True"),
        (MISTRAL_7B, {"mlp_bias": True}, "mlp_bias=True"),
        (MISTRAL_7B, {"layer_types": ["full_attention"] * 32}, "layer_types"),
    ],
)
def test_what_is_not_computed_is_refused(
    base: dict[str, Any], changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(UnsupportedModelError, match="unsupported features") as caught:
        read(base, **changes)
    assert any(named in feature for feature in caught.value.missing)
    assert named in caught.value.message


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        read(MISTRAL_7B, hidden_act="gelu", logit_scale=0.5)
    assert caught.value.missing == ("logit_scale=0.5", "hidden_act=gelu")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "2048"}, "hidden_size must be an integer"),
        ({"hidden_size": 2048.0}, "hidden_size must be an integer"),
        ({"hidden_size": True}, "hidden_size must be an integer"),
        ({"hidden_size": 0}, "hidden_size must be an integer"),
        ({"hidden_size": 2**40}, "hidden_size must be an integer from 1 to 1048576"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": 2**31}, "vocab_size"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"num_attention_heads": 31, "num_key_value_heads": 31, "head_dim": ...}, "hidden_size"),
        ({"num_key_value_heads": 5}, "num_key_value_heads is 5"),
        ({"max_position_embeddings": ...}, "max_position_embeddings is missing"),
        ({"max_position_embeddings": 1}, "max_position_embeddings must be an integer from 2"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be finite and above 0"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be finite and above 0"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number"),
        ({"rope_theta": -1.0}, "rope_theta must be finite and above 0"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "rope_scaling.factor must be"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-308}}, "rope_scaling.factor must be"),
        ({"rope_scaling": {**YARN_SCALING, "beta_fast": 1e308}}, "rope_scaling.beta_fast must be"),
        (
            {"rope_scaling": {**YARN_SCALING, "rope_theta": 1}},
            "rope_scaling.rope_theta must be above 1 with rope scaling yarn",
        ),
        (
            {"rope_scaling": {**LONG_SCALING, "original_max_position_embeddings": 1}},
            "rope_scaling.original_max_position_embeddings must be an integer from 2",
        ),
        (
            {"rope_scaling": {**LONG_SCALING, "long_factor": [1e-308] * 32}},
            "rope_scaling.long_factor must be",
        ),
        (
            {"rope_scaling": {**LLAMA3_SCALING, "low_freq_factor": 4.0}},
            "rope_scaling.low_freq_factor must be below",
        ),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"hidden_act": 3}, "hidden_act must be a string"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must be a list"),
        ({"architectures": [1]}, "architectures must be a list of strings"),
        ({"architectures": ..., "model_type": ...}, "model_type is missing"),
    ],
)
def test_a_malformed_file_is_refused_by_key(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(LLAMA_3_2_1B, **changes)
    assert caught.value.message.startswith("somewhere/config.json: ")
    assert named in caught.value.message


def test_layer_types_must_fit_the_layers_and_the_window() -> None:
    with pytest.raises(ModelFileError, match="layer_types has 2 entries for 28 layers"):
        read(QWEN3_0_6B, layer_types=["full_attention"] * 2)
    with pytest.raises(ModelFileError, match="use_sliding_window is not set"):
        read(QWEN3_0_6B, layer_types=["sliding_attention"] * 28)
