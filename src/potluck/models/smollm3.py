"""SmolLM3 (Hugging Face 2025): Llama without rope in every fourth layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from potluck.errors import ModelFileError
from potluck.models import dense, gguf, hugging_face
from potluck.models.family import Family
from potluck.models.fields import MAX_LAYERS, Fields
from potluck.models.layers import with_attention
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
        "attention_bias",
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
    attention_bias = fields.flag("attention_bias", default=False)
    turns = _layers_with_rope(fields)
    config = hugging_face.read_config(
        fields,
        family="smollm3",
        implemented=_IMPLEMENTED,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", default=False),
        sliding_windows=_windows(fields, turns),
    )
    return _with_rope(config, turns)


def _layers_with_rope(fields: Fields) -> tuple[bool, ...]:
    num_layers = hugging_face.num_hidden_layers(fields)
    flags = fields.counts("no_rope_layers", 1)
    if not flags:
        interval = fields.count("no_rope_layer_interval", MAX_LAYERS, _INTERVAL)
        return _all_but_every_nth(interval, num_layers)
    if len(flags) < num_layers:
        raise ModelFileError(
            fields.path, f"no_rope_layers has {len(flags)} entries for {num_layers} layers"
        )
    return tuple(flag == 1 for flag in flags[:num_layers])


def _all_but_every_nth(interval: int, num_layers: int) -> tuple[bool, ...]:
    return tuple((layer + 1) % interval != 0 for layer in range(num_layers))


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
    return dense.windows(fields.with_defaults({"layer_types": kinds}))


def _with_rope(config: ModelConfig, turns: tuple[bool, ...]) -> ModelConfig:
    return with_attention(
        config,
        lambda layer, attention: dataclasses.replace(attention, rope=0 if turns[layer] else None),
    )


def _from_gguf(fields: Fields, source: TensorSource) -> ModelConfig:
    names = frozenset(source.names())
    config = gguf.read_config(
        fields,
        source,
        family="smollm3",
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
    )
    return _with_rope(config, _all_but_every_nth(_INTERVAL, config.num_layers))


SMOLLM3 = Family(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    gguf_architectures=("smollm3",),
    from_hugging_face=_from_hugging_face,
    from_gguf=_from_gguf,
    names=dense.CONVERTED_NAMES,
)
