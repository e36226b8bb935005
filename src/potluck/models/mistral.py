"""Mistral 7B and its successors (Jiang et al. 2023), and Ministral 3 (Mistral AI 2025).

The former are Llama with a sliding window in every layer; their GGUF files have the architecture
``llama``. Ministral 3, Devstral 2 and Mistral Large 3's dense relatives have YaRN, and queries
whose scale grows with the position. Of multimodal models (Mistral Small 3.1 and later), only the
text part is used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from potluck.models import gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.layers import with_attention
from potluck.models.names import CONVERTED_NAMES, HUGGING_FACE_NAMES, FileKind, NameTable
from potluck.types.model import ModelConfig, RopeConfig
from potluck.types.tensor import TensorSource

_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
        {},
        skipped={
            "a vision tower": re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector)\."),
        },
    ),
}
_WRAPPERS = {"mistral3": "Mistral3ForConditionalGeneration"}


def _from_hugging_face(fields: Fields) -> ModelConfig:
    # If the key is absent, transformers assumes Mistral 7B's window; later models have null.
    window = hugging_face.window_unless_null(fields)
    return hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 8}),
        implemented=frozenset({"sliding_window"}),
        sliding_windows=(window,) * hugging_face.num_hidden_layers(fields),
    )


_BETA = "llama_4_scaling_beta"
# ``Ministral3Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "rms_norm_eps": 1e-5,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262_144,
}
_DEFAULT_ROPE: Mapping[str, object] = {
    "rope_type": "yarn",
    "rope_theta": 1_000_000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    _BETA: 0.1,
}
_LOG_SCALE, _TEMPERATURE = "rope.scaling.yarn_log_multiplier", "attention.temperature_scale"
_GGUF_KEYS = frozenset({_LOG_SCALE, _TEMPERATURE, "rope.scaling.yarn_attn_factor"})


def _ministral3_from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    rope = fields.section("rope_scaling") or fields.section("rope_parameters")
    if rope is None:
        rope = Fields(values=_DEFAULT_ROPE, path=fields.path, prefix="rope_parameters.")
    beta = rope.nonzero(_BETA, 0.0)
    plain = fields.without("rope_scaling", "rope_parameters")
    plain = plain.with_defaults(
        {"rope_parameters": rope.without(_BETA, "max_position_embeddings").values}
    )
    config = hugging_face.read_config(
        plain,
        implemented=frozenset({"sliding_window"}),
        sliding_windows=hugging_face.equal_windows(fields),
    )
    original = hugging_face.trained_context(fields, rope, config.max_context_tokens)
    return _with_query_scale(config, beta, original)


def _ministral3_from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(fields, source, implemented=_GGUF_KEYS)
    (rope,) = config.ropes
    gguf.refuse_other_yarn_factor(fields, rope.factor)
    config = dataclasses.replace(config, ropes=(_with_log_scale(fields, rope),))
    beta = fields.nonzero(_TEMPERATURE, 0.0)
    return _with_query_scale(config, beta, gguf.trained_context(fields))


def _with_log_scale(fields: Fields, rope: RopeConfig) -> RopeConfig:
    # As in llama.cpp (``llama_context``), which assumes an ``mscale`` of 1.
    if not fields.get(_LOG_SCALE) or rope.factor <= 1:
        return rope
    scale = hugging_face.yarn_scale(rope.factor, fields.positive(_LOG_SCALE))
    return dataclasses.replace(rope, attention_factor=rope.attention_factor / scale)


def _with_query_scale(config: ModelConfig, beta: float, original: int) -> ModelConfig:
    """Return ``config`` with a second table, for queries, unless their scale is 1 everywhere."""
    if beta == 0:
        return config
    (rope,) = config.ropes
    scaled = dataclasses.replace(rope, position_beta=beta, original_context_tokens=original)
    return with_attention(
        dataclasses.replace(config, ropes=(rope, scaled)),
        lambda _, attention: dataclasses.replace(attention, query_rope=1),
    )


MISTRAL = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    from_hugging_face=_from_hugging_face,
    names=_NAMES,
    wrappers=_WRAPPERS,
)
MINISTRAL3 = Family(
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    gguf_architectures=("mistral3",),
    from_hugging_face=_ministral3_from_hugging_face,
    from_gguf=_ministral3_from_gguf,
    names={**CONVERTED_NAMES, **_NAMES},
    wrappers=_WRAPPERS,
)
