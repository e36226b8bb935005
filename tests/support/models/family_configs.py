"""A small configuration of every family, as its ``config.json`` is read, and wider ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from support.models.lookalike_bases import BASES
from support.models.lookalikes import Base
from support.models.random_models import SMALL

from potluck.models.layers import with_layers
from potluck.models.registry import config_from_hugging_face
from potluck.types.model import AttentionConfig, LatentAttentionConfig, LayerConfig, ModelConfig

BASE_NAMES = tuple(str(each) for each in BASES)


@cache
def family_config(name: str) -> ModelConfig:
    """The configuration of the base of that name, without making the model."""
    from transformers import AutoConfig

    (base,) = (each for each in BASES if str(each) == name)
    made = AutoConfig.for_model(base.family, **copy.deepcopy(_settings(base)))
    values = json.loads(made.to_json_string(use_diff=False))
    # An infinity as it is written there is not read back.
    return config_from_hugging_face(
        {key: values[key] for key in values if key not in ("time_step_limit", "architectures")}
    )


def _settings(base: Base) -> Mapping[str, Any]:
    return {**SMALL, "pad_token_id": None, "eos_token_id": 2, **base.settings}


def with_more_heads(
    config: ModelConfig, factor: int, *, key_factor: int | None = None
) -> ModelConfig:
    """``config`` with ``factor`` times the heads, and ``key_factor`` times those of keys.

    None is the same factor. One key-value head for all stays one.
    """
    keys = factor if key_factor is None else key_factor

    def changed(_: int, layer: LayerConfig) -> LayerConfig:
        attention = layer.attention
        if isinstance(attention, AttentionConfig):
            num_kv_heads = attention.num_kv_heads
            attention = replace(
                attention,
                num_heads=factor * attention.num_heads,
                num_kv_heads=num_kv_heads if num_kv_heads == 1 else keys * num_kv_heads,
            )
        elif isinstance(attention, LatentAttentionConfig):
            attention = replace(attention, num_heads=factor * attention.num_heads)
        return replace(layer, attention=attention)

    return with_layers(config, changed)
