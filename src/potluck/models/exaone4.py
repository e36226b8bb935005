"""EXAONE 4 (LG AI Research 2025): norms after each branch and on every head; where some layers
slide, the others have no rope.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, Fields
from potluck.models.layers import with_layers
from potluck.types.model import HeadNorm, LayerConfig, ModelConfig, NormPlaces
from potluck.types.tensor import TensorSource

# ``Exaone4Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "sliding_window": 4096,
}
_IMPLEMENTED = frozenset({"layer_types", "sliding_window", "sliding_window_pattern"})
_GGUF_KEYS = frozenset({"attention.sliding_window", dense.PATTERN_KEY})
_PATTERN = 4
# What ``llama.cpp`` takes for the 32B, and its window.
_LAYERS_OF_32B, _WINDOW_OF_32B = 64, 4096


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    has_window = fields.get("sliding_window") is not None
    pattern = _pattern(fields) if has_window else None
    config = hugging_face.read_config(
        fields, family="exaone4", implemented=_IMPLEMENTED, head_norm=HeadNorm.HEAD
    )
    windows = dense.windows(fields, pattern=pattern)
    return _with_windows(config, windows, full_turn=not has_window)


def _pattern(fields: Fields) -> int:
    value = fields.get("sliding_window_pattern")
    if isinstance(value, str):
        # Sliding layers ("L") before a full one ("G").
        if not value or value != "L" * (len(value) - 1) + "G":
            raise fields.error("sliding_window_pattern", 'must be a number, or like "LLLG"')
        return len(value)
    return fields.count("sliding_window_pattern", MAX_LAYERS, _PATTERN)


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields, source, family="exaone4", implemented=_GGUF_KEYS, head_norm=HeadNorm.HEAD
    )
    default_window = _WINDOW_OF_32B if config.num_layers == _LAYERS_OF_32B else 0
    windows = dense.gguf_windows(fields, pattern=_PATTERN, default_window=default_window)
    return _with_windows(config, windows, full_turn=not any(windows))


def _with_windows(
    config: ModelConfig, windows: Sequence[int | None], *, full_turn: bool
) -> ModelConfig:
    """``full_turn``: layers that do not slide have rope as well."""

    def change(index: int, layer: LayerConfig) -> LayerConfig:
        window = windows[index]
        rope = 0 if full_turn or window is not None else None
        attention = dataclasses.replace(layer.attention, window=window, rope=rope)
        return dataclasses.replace(layer, attention=attention, norms=NormPlaces.POST)

    return with_layers(config, change)


EXAONE4 = Family(
    name="exaone4",
    architecture="Exaone4ForCausalLM",
    gguf_architectures=("exaone4",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.POST_NORM_NAMES,
)
