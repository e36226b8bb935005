"""EXAONE 4 (LG AI 2025): norms after each branch, and no rope in full-attention layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import Fields
from potluck.models.layers import with_windows
from potluck.models.olmo2 import POST_NORM_NAMES
from potluck.types.model import HeadNorm, ModelConfig, NormPlaces
from potluck.types.tensor import TensorSource

_PATTERN = 4
_PATTERN_KEY = "sliding_window_pattern"


def _from_hugging_face(fields: Fields) -> ModelConfig:
    config = hugging_face.read_config(
        fields.with_defaults({"num_key_value_heads": 32}),
        implemented=frozenset({"layer_types", "sliding_window", _PATTERN_KEY}),
        head_norm=HeadNorm.HEAD,
    )
    config = dataclasses.replace(config, norm_epsilon=fields.positive("rms_norm_eps", 1e-5))
    window = hugging_face.window_unless_null(fields)
    if window is None:
        return _with_kinds(config, (False,) * config.num_layers, None)
    return _with_kinds(config, _sliding_layers(fields, config.num_layers), window)


def _sliding_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return the sliding layers, from ``layer_types``, a number such as ``4``, or letters such as
    ``LLLG``.
    """
    letters = fields.get(_PATTERN_KEY)
    if fields.texts("layer_types") or not isinstance(letters, str) or not letters:
        pattern = _PATTERN if isinstance(letters, str) or letters is None else letters
        if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
            raise fields.error(
                _PATTERN_KEY, "must be an integer or a string of letters such as LLLG"
            )
        return gemma.sliding_layers(fields, pattern=pattern)
    if set(letters) - {"L", "G"}:
        raise fields.error(_PATTERN_KEY, "must be an integer or a string of letters such as LLLG")
    return tuple(letters[layer % len(letters)] == "L" for layer in range(num_layers))


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields.without(gemma.PATTERN_KEY),
        source,
        implemented=frozenset({"attention.sliding_window"}),
        head_norm=HeadNorm.HEAD,
    )
    window = gguf.read_window(fields)
    if window is None:
        return _with_kinds(config, (False,) * config.num_layers, None)
    is_sliding = gemma.pattern_of(fields, config.num_layers, default=_PATTERN)
    return _with_kinds(config, is_sliding, window)


def _with_kinds(config: ModelConfig, is_sliding: Sequence[bool], window: int | None) -> ModelConfig:
    """Apply rope to sliding-window layers only; if there is no window, to all layers."""
    ropes = {True: 0, False: 0 if window is None else None}
    return with_windows(config, is_sliding, window, ropes, NormPlaces.POST)


EXAONE4 = Family(
    name="exaone4",
    architecture="Exaone4ForCausalLM",
    gguf_architectures=("exaone4",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=POST_NORM_NAMES,
)
