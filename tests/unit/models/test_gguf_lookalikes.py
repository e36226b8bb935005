"""GGUF files with a key that the architecture's reader does not implement are refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.models.state_dict_source import StateDictSource

from potluck.errors import UnsupportedModelError
from potluck.models.family import all_families
from potluck.models.registry import config_from_gguf

COMMON: Mapping[str, Any] = {
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.key_length": 24,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "attention.value_length": 24,
    "block_count": 2,
    "context_length": 8192,
    "embedding_length": 96,
    "feed_forward_length": 160,
    "rope.dimension_count": 24,
    "vocab_size": 50,
}
_GATED_DELTA_KEYS: Mapping[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 2,
    "ssm.inner_size": 192,
    "ssm.state_size": 24,
    "ssm.time_step_rank": 8,
}
_MAMBA_KEYS: Mapping[str, Any] = {
    "ssm.conv_kernel": 4,
    "ssm.group_count": 1,
    "ssm.inner_size": 192,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 8,
}
_NEMOTRON_KEYS: Mapping[str, Any] = {
    **_MAMBA_KEYS,
    "attention.head_count_kv": [0, 2],
    "feed_forward_length": [0, 0],
}
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "cohere2": {
        "attention.layer_norm_epsilon": 1e-5,
        "attention.sliding_window": 64,
        "logit_scale": 0.5,
    },
    "deepseek2": {
        "attention.kv_lora_rank": 64,
        "attention.value_length": 16,
        "rope.dimension_count": 16,
    },
    "gemma4": {
        "attention.key_length_swa": 24,
        "attention.sliding_window": 64,
        "attention.sliding_window_pattern": [True, False] * 2,
        "block_count": 4,
    },
    "gpt-oss": {"attention.sliding_window": 64},
    "granite": {"logit_scale": 8.0},
    "falcon-h1": _MAMBA_KEYS,
    "granitehybrid": {**_MAMBA_KEYS, "attention.head_count_kv": [0, 2]},
    "lfm2": {"shortconv.l_cache": 3},
    "lfm2moe": {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3},
    "mamba2": {**_MAMBA_KEYS, "attention.head_count": 0, "feed_forward_length": 0},
    "nemotron_h": _NEMOTRON_KEYS,
    "nemotron_h_moe": _NEMOTRON_KEYS,
    "qwen35": _GATED_DELTA_KEYS,
    "qwen35moe": _GATED_DELTA_KEYS,
    "qwen3next": _GATED_DELTA_KEYS,
}
"""What some readers require besides."""

UNKNOWN: Mapping[str, Any] = {
    "activation_sparsity_scale": [0.5, 0.5],
    "altup.num_inputs": 4,
    "attention.causal": False,
    "attention.clamp_kqv": 8.0,
    "attention.indexer.top_k": 8,
    "attention.max_alibi_bias": 8.0,
    "attention.output_scale": 2.0,
    "attention.temperature_length": 64,
    "expert_group_scale": 2.0,
    "rope.scaling.alpha": 1000.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "router_logit_softcapping": 30.0,
    "swiglu_clamp_exp": [7.0, 7.0],
    "swin_norm": True,
    "use_parallel_residual": True,
    "wkv.head_size": 64,
    "a_key_of_tomorrow": 3,
}
"""Keys of other architectures of llama.cpp, and one of none."""

_GRANITE = frozenset({"granite", "granitehybrid", "granitemoe"})
_QWEN3_5 = frozenset({"qwen35", "qwen35moe"})
_GATED_DELTA = _QWEN3_5 | {"qwen3next"}
_NEMOTRON = frozenset({"nemotron_h", "nemotron_h_moe"})
READERS: Mapping[str, tuple[Any, frozenset[str]]] = {
    "attention.kv_lora_rank": (64, frozenset({"deepseek2"})),
    "attention.q_lora_rank": (64, frozenset({"deepseek2"})),
    "attention.key_length_swa": (24, frozenset({"gemma4"})),
    "attention.scale": (0.5, _GRANITE),
    "attention.shared_kv_layers": (1, frozenset({"gemma4"})),
    "attention.temperature_scale": (0.1, frozenset({"mistral3"})),
    "attn_logit_softcapping": (50.0, frozenset({"gemma2"})),
    "embedding_length_per_layer_input": (8, frozenset({"gemma4"})),
    "embedding_scale": (12.0, _GRANITE),
    "final_logit_softcapping": (30.0, frozenset({"gemma2", "gemma3", "gemma4"})),
    "logit_scale": (8.0, _GRANITE | {"cohere2"}),
    "full_attention_interval": (2, _GATED_DELTA),
    "moe_latent_size": (32, _NEMOTRON),
    "nextn_predict_layers": (
        1,
        _GATED_DELTA | _NEMOTRON | {"deepseek2", "glm4moe"},
    ),
    "residual_scale": (0.5, _GRANITE),
    "rope.freq_base_swa": (10_000.0, frozenset({"gemma3", "gemma4", "olmo2"})),
    "rope.dimension_sections": ([4, 4, 4, 0], _QWEN3_5),
    "rope.scaling.yarn_attn_factor": (1.0, frozenset({"mistral3", "olmo2"})),
    "rope.scaling.yarn_log_multiplier": (0.1, frozenset({"deepseek2", "mistral3"})),
}
"""Values of keys that change the arithmetic, and the architectures whose readers know them."""

ARCHITECTURES = tuple(each for family in all_families() for each in family.gguf_architectures)


def read(architecture: str, changes: Mapping[str, Any]) -> None:
    values = {**COMMON, **NEEDED.get(architecture, {}), **changes}
    embedding: NDArray[np.float32] = np.zeros((50, 96), dtype=np.float32)
    metadata = {f"{architecture}.{key}": value for key, value in values.items()}
    config_from_gguf(
        {"general.architecture": architecture, **metadata},
        StateDictSource({"token_embd.weight": embedding}),
        path="model.gguf",
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_metadata_are_read(architecture: str) -> None:
    read(architecture, {})


def refused(architecture: str, key: str, value: Any) -> bool:
    """Whether a file with ``key`` is refused by the name of the key; any other error is raised."""
    try:
        read(architecture, {key: value})
    except UnsupportedModelError as error:
        return any(f"{architecture}.{key}" in each for each in error.missing)
    return False


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keys_of_no_reader_are_refused(architecture: str) -> None:
    ignored = [key for key, value in UNKNOWN.items() if not refused(architecture, key, value)]
    assert ignored == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keys_are_read_or_refused(architecture: str) -> None:
    ignored = []
    for key, (value, readers) in READERS.items():
        if architecture in readers:
            read(architecture, {key: value})
        elif not refused(architecture, key, value):
            ignored.append(key)
    assert ignored == []
