"""What dense families read in configurations, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.models.state_dict_source import StateDictSource

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.models.names import FileKind
from potluck.models.registry import (
    config_from_gguf,
    config_from_hugging_face,
    skipped_parts,
    with_stored_head,
)
from potluck.types.model import RopeScaling

SIZES: Mapping[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 4096,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
}
GRANITE4: Mapping[str, Any] = {
    **SIZES,
    "num_local_experts": 0,
    "layer_types": ["attention"] * 8,
    "position_embedding_type": "rope",
}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "cohere2": SIZES,
    "ernie4_5": SIZES,
    "exaone4": SIZES,
    "glm4": SIZES,
    "granite": SIZES,
    "granitemoehybrid": GRANITE4,
    "hunyuan_v1_dense": {**SIZES, "head_dim": 128},
    "ministral3": SIZES,
    "olmo2": SIZES,
    "olmo3": SIZES,
    "phi3": SIZES,
    "seed_oss": SIZES,
    "smollm3": SIZES,
}
YARN: Mapping[str, Any] = {"rope_type": "yarn", "factor": 16.0, "rope_theta": 1e6}


@pytest.mark.slow
@pytest.mark.parametrize("family", SETTINGS)
def test_absent_keys_mean_what_transformers_takes_them_for(family: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    settings = SETTINGS[family]
    AutoConfig.for_model(family, **settings).save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    read = config_from_hugging_face({"model_type": family, **settings})
    assert read == config_from_hugging_face(written)


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("phi3", {"attention_bias": True}, "attention_bias=True"),
        ("phi3", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope scaling dynamic"),
        ("ministral3", {"rope_parameters": {**YARN, "gamma": 1.0}}, "gamma in rope scaling yarn"),
        ("smollm3", {"qk_norm": True}, "qk_norm=True"),
        ("granite", {"num_local_experts": 4}, "num_local_experts=4"),
        (
            "granitemoehybrid",
            {"layer_types": ["attention", "sliding_attention"] * 4},
            "layer_types sliding_attention",
        ),
        ("granitemoehybrid", {"position_embedding_type": "alibi"}, "position_embedding_type=alibi"),
        ("glm4", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("glm4", {"use_mrope": True}, "use_mrope=True"),
        ("cohere2", {"use_parallel_block": False}, "use_parallel_block=False"),
        ("cohere2", {"position_embedding_type": "rope"}, "position_embedding_type=rope"),
        ("hunyuan_v1_dense", {"use_cla": True}, "use_cla=True"),
        ("hunyuan_v1_dense", {"use_qk_norm": False}, "use_qk_norm=False"),
        ("hunyuan_v1_dense", {"num_experts": 16}, "num_experts=16"),
    ],
)
def test_a_look_alike_is_refused_by_name(
    family: str, changes: Mapping[str, Any], named: str
) -> None:
    config = {"model_type": family, **SETTINGS[family], **changes}
    with pytest.raises(UnsupportedModelError) as raised:
        config_from_hugging_face(config)
    assert named in raised.value.missing


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("phi3", {"rope_scaling": {"type": "su", "long_factor": [1.0]}}, "long_factor"),
        ("phi3", {"partial_rotary_factor": 0.001}, "partial_rotary_factor"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 8}, "layer_types"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier"),
        ("ministral3", {"rope_parameters": {**YARN, "llama_4_scaling_beta": -1}}, "llama_4"),
    ],
)
def test_a_wrong_value_is_an_error(family: str, changes: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError, match=named):
        config_from_hugging_face({"model_type": family, **SETTINGS[family], **changes})


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_older_names_of_longrope(kind: str) -> None:
    factors = {"long_factor": [2.0] * 64, "short_factor": [1.0] * 64}
    config = config_from_hugging_face(
        {"model_type": "phi3", **SIZES, "rope_scaling": {"type": kind, **factors}}
    )
    assert config.ropes[0].scaling is RopeScaling.LONGROPE
    assert config.ropes[0].original_context_tokens == 4096


def test_longrope_of_a_given_factor() -> None:
    rope = {
        "rope_type": "longrope",
        "factor": 32.0,
        "long_factor": [2.0] * 64,
        "short_factor": [1.0] * 64,
    }
    config = config_from_hugging_face({"model_type": "phi3", **SIZES, "rope_parameters": rope})
    assert config.ropes[0].attention_factor == pytest.approx(
        (1 + np.log(32.0) / np.log(4096)) ** 0.5
    )


def test_queries_without_a_scale_have_no_table_of_their_own() -> None:
    config = config_from_hugging_face(
        {"model_type": "ministral3", **SIZES, "rope_parameters": YARN}
    )
    assert len(config.ropes) == 1
    assert {layer.grouped_attention.query_rope for layer in config.layers} == {None}


@pytest.mark.parametrize("text_type", ["mistral", "ministral3"])
def test_text_part_of_a_model_that_sees(text_type: str) -> None:
    config = config_from_hugging_face(
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "text_config": {"model_type": text_type, **SIZES},
            "vision_config": {"model_type": "pixtral"},
        }
    )
    assert config.family == text_type
    names = [
        "language_model.model.embed_tokens.weight",
        "language_model.lm_head.weight",
        "vision_tower.ln_pre.weight",
        "multi_modal_projector.linear_1.weight",
    ]
    stored = with_stored_head(config, names, FileKind.HUGGING_FACE)
    assert not stored.tied_head
    assert stored.prefix == "language_model.model."
    assert skipped_parts(stored, names, FileKind.HUGGING_FACE) == ("a vision tower",)


def test_a_model_that_sees_ties_its_head_unless_it_says_otherwise() -> None:
    text = {"model_type": "mistral", **SIZES, "tie_word_embeddings": False}
    document = {"model_type": "mistral3", "text_config": text}
    assert config_from_hugging_face(document).tied_head
    assert not config_from_hugging_face(document | {"tie_word_embeddings": False}).tied_head


GGUF: Mapping[str, Any] = {
    "block_count": 4,
    "context_length": 256,
    "embedding_length": 96,
    "feed_forward_length": 160,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
YARN_KEYS: Mapping[str, Any] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 32,
}


@pytest.mark.parametrize(
    ("architecture", "changes", "named"),
    [
        (
            "olmo2",
            {**YARN_KEYS, "rope.scaling.yarn_attn_factor": 1.5},
            "olmo2.rope.scaling.yarn_attn_factor=1.5",
        ),
        (
            "olmo2",
            {"attention.sliding_window": 9, "rope.freq_base_swa": 500.0},
            "olmo2.rope.freq_base_swa=500.0",
        ),
        (
            "mistral3",
            {**YARN_KEYS, "rope.scaling.yarn_ext_factor": 0.5},
            "mistral3.rope.scaling.yarn_ext_factor=0.5",
        ),
        (
            "granite",
            {"logit_scale": 8.0, "attention.head_count_kv": [2, 0, 2, 2]},
            "granite.attention.head_count_kv=0",
        ),
        ("glm4", {"rope.dimension_sections": [8, 12, 12, 0]}, "glm4.rope.dimension_sections"),
        ("phi3", {"rope.scaling.attn_factor": 1.2}, "phi3.rope.scaling.attn_factor=1.2"),
    ],
)
def test_a_gguf_key_that_changes_the_arithmetic_is_refused(
    architecture: str, changes: Mapping[str, Any], named: str
) -> None:
    metadata = {f"{architecture}.{key}": value for key, value in {**GGUF, **changes}.items()}
    source = StateDictSource({"token_embd.weight": np.zeros((97, 96), np.float32)})
    with pytest.raises(UnsupportedModelError) as raised:
        config_from_gguf(
            {"general.architecture": architecture, **metadata}, source, path="model.gguf"
        )
    assert any(each.startswith(named) for each in raised.value.missing)
