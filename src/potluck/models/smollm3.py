"""SmolLM3 (Hugging Face 2025): Llama without rope in every fourth layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.errors import ModelFileError
from potluck.models import gemma, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, Fields
from potluck.models.layers import all_but_every_nth, with_attention
from potluck.models.names import CONVERTED_NAMES
from potluck.types.model import ModelConfig
from potluck.types.tensor import TensorSource

# ``SmolLM3Config`` of transformers.
_DEFAULTS: Mapping[str, object] = {
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
    "rope_theta": 2_000_000.0,
    "tie_word_embeddings": True,
}
_IMPLEMENTED = frozenset(
    {
        "layer_types",
        "mlp_bias",
        "no_rope_layer_interval",
        "no_rope_layers",
        "sliding_window",
        "use_sliding_window",
    }
)
_INTERVAL = 4
"""Interval of layers without rope; GGUF files do not specify it."""


def _from_hugging_face(fields: Fields) -> ModelConfig:
    fields = fields.with_defaults(_DEFAULTS)
    turns = _layers_with_rope(fields)
    config = hugging_face.read_config(
        fields,
        implemented=_IMPLEMENTED,
        reads_attention_bias=True,
        mlp_bias=fields.flag("mlp_bias", default=False),
        sliding_windows=_windows(fields, turns),
    )
    return _with_rope(config, turns)


def _layers_with_rope(fields: Fields) -> tuple[bool, ...]:
    num_layers = hugging_face.num_hidden_layers(fields)
    flags = fields.counts("no_rope_layers", 1)
    if not flags:
        interval = fields.count("no_rope_layer_interval", MAX_LAYERS, _INTERVAL)
        return all_but_every_nth(num_layers, interval)
    if len(flags) < num_layers:
        raise ModelFileError(
            fields.path, f"no_rope_layers has {len(flags)} entries for {num_layers} layers"
        )
    return tuple(flag == 1 for flag in flags[:num_layers])


def _windows(fields: Fields, turns: tuple[bool, ...]) -> tuple[int | None, ...]:
    """Return the windows in ``layer_types``; without it, layers without rope have none."""
    uses = fields.flag("use_sliding_window", default=False) and fields.get("sliding_window")
    if not uses:
        if hugging_face.SLIDING in fields.texts("layer_types"):
            raise ModelFileError(
                fields.path, "layer_types has sliding_attention, but use_sliding_window is not set"
            )
        return (None,) * len(turns)
    kinds = [hugging_face.FULL if each else hugging_face.SLIDING for each in turns]
    slides = hugging_face.sliding_layers(fields.with_defaults({"layer_types": kinds}))
    window = gemma.window_of(fields, slides)
    return tuple(window if each else None for each in slides)


def _with_rope(config: ModelConfig, turns: tuple[bool, ...]) -> ModelConfig:
    return with_attention(
        config,
        lambda layer, attention: dataclasses.replace(attention, rope=0 if turns[layer] else None),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    config = gguf.read_config(
        fields,
        source,
        optional_biases=gguf.ALL_BIASES,
    )
    return _with_rope(config, all_but_every_nth(config.num_layers, _INTERVAL))


SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    gguf_architectures=("smollm3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=CONVERTED_NAMES,
)
