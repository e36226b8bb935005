"""What the Gemma families have in common.

Embeddings are scaled by the root of the hidden size, each branch has a norm before and after it,
layers with a sliding window alternate with others, and the head is the embedding. Missing keys of
``config.json`` are usual in published files, so that the defaults of ``transformers`` count.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence, Sized

from potluck.models import hugging_face
from potluck.models.fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, Fields, unsupported
from potluck.models.hugging_face import FULL, SLIDING
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind, NameTable, StoredPart
from potluck.types.model import LayerConfig, ModelConfig, NormPlaces, RopeConfig
from potluck.types.program import Activation

ACTIVATIONS: Mapping[str, Activation] = {"gelu_pytorch_tanh": Activation.GELU_TANH}
"""By ``hidden_activation``."""

PATTERN_KEY = "attention.sliding_window_pattern"
"""In GGUF files: which layers slide, as a list or a number."""

SKIPPED: Mapping[str, re.Pattern[str]] = {
    "a vision tower": re.compile(
        r"(model\.)?(vision_tower|multi_modal_projector|embed_vision|vision_embedder)\..+"
    ),
    "an audio tower": re.compile(r"(model\.)?(audio_tower|embed_audio)\..+"),
}
"""Tensors of the parts of a model that are not text, by what they are."""

HUGGING_FACE_STEMS: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
GGUF_STEMS: Mapping[str, str] = {
    "attn_post_norm": "post_attention_norm",
    "mlp_post_norm": "post_ffw_norm",
}

_HEAD_NORMS = {"attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm"}


def names_with_shifted_norms() -> Mapping[FileKind, NameTable]:
    """The names of Gemma 2 and 3, whose safetensors files have ``w - 1`` for a norm's weight ``w``.

    GGUF files have the weight itself.
    """
    shifted = {
        stem: StoredPart(name=name, plus_one=True)
        for stem, name in {**HUGGING_FACE_STEMS, **_HEAD_NORMS}.items()
    }
    return {
        FileKind.HUGGING_FACE: HUGGING_FACE_NAMES.changed(
            shifted,
            stems={"norm": StoredPart(name="model.norm", plus_one=True)},
            skipped=SKIPPED,
        ),
        FileKind.GGUF: GGUF_NAMES.changed(GGUF_STEMS),
    }


def with_defaults(fields: Fields, defaults: Mapping[str, object]) -> Fields:
    """``fields`` with ``defaults`` for the keys that are absent; a null stays.

    The activation is under ``hidden_act``, where other families have it: Gemma 2's files may have
    both keys, of which ``hidden_activation`` counts.
    """
    values = {**defaults, **fields.values}
    if values.get("use_bidirectional_attention") not in (None, False):
        raise unsupported(f"use_bidirectional_attention={values['use_bidirectional_attention']}")
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if activation not in ACTIVATIONS:
        raise unsupported(f"hidden_activation={activation}")
    values["hidden_act"] = activation
    return dataclasses.replace(fields, values=values)


def layers_that_slide(fields: Fields, *, pattern: int) -> tuple[bool, ...]:
    """Whether each layer has a sliding window, as ``layer_types`` says.

    Without it all have but every ``pattern``-th.
    """
    if not fields.texts("layer_types"):
        return every_other_slides(hugging_face.num_hidden_layers(fields), pattern)
    return hugging_face.layers_that_slide(fields)


def every_other_slides(num_layers: int, pattern: int) -> tuple[bool, ...]:
    """All layers but every ``pattern``-th; a pattern of 0 is all of them."""
    return tuple(pattern == 0 or (layer + 1) % pattern != 0 for layer in range(num_layers))


def read_section_rope(
    fields: Fields,
    kind: str,
    *,
    head_dim: int,
    theta: float,
    scaling: Mapping[str, object] | None = None,
) -> RopeConfig:
    """The rope of layers of ``kind``, from that section of ``rope_parameters``.

    ``theta`` is that of a section without one, and ``scaling`` what a section says besides.
    """
    parameters = fields.section("rope_parameters")
    if parameters is not None and (unknown := sorted(set(parameters.values) - {FULL, SLIDING})):
        raise unsupported(*(f"{key} in rope_parameters" for key in unknown))
    section = None if parameters is None else parameters.section(kind)
    values = {**({} if section is None else section.values), **(scaling or {})}
    if values.get("truncate", True) is not True:
        # transformers 5 looks for it outside the section, where it does not find it.
        raise unsupported(f"truncate={values['truncate']} in the rope of {kind}")
    share = values.pop("partial_rotary_factor", None)
    if share not in (None, 1):
        raise unsupported(f"partial_rotary_factor={share} in the rope of {kind}")
    view = {
        **fields.values,
        "rope_parameters": values,
        "rope_scaling": None,
        "rope_theta": theta,
        "partial_rotary_factor": None,
        # Of a rope for each kind of layer, only what is in its section counts.
        "original_max_position_embeddings": None,
    }
    return hugging_face.read_rope(
        dataclasses.replace(fields, values=view),
        head_dim=head_dim,
        max_context_tokens=fields.count("max_position_embeddings", MAX_CONTEXT_TOKENS),
    )


def with_sandwiched_layers(
    config: ModelConfig,
    *,
    is_sliding: Sequence[bool],
    window: int | None,
    ropes: Mapping[bool, RopeConfig],
    scale: float,
    softcap: float | None = None,
) -> ModelConfig:
    """``config`` with the norms and the embedding scale of Gemma, and layers of two kinds.

    ``ropes`` is by whether a layer slides; ``scale`` and ``softcap`` are those of all attention.
    """
    if any(is_sliding) and window is None:
        raise ValueError("layers that slide need a window")
    tables = rope_indices(is_sliding, ropes)
    layers: list[LayerConfig] = []
    for layer, slides in zip(config.layers, is_sliding, strict=True):
        attention = dataclasses.replace(
            layer.grouped_attention,
            scale=scale,
            softcap=softcap,
            window=window if slides else None,
            rope=tables[slides],
        )
        layers.append(dataclasses.replace(layer, attention=attention, norms=NormPlaces.SANDWICH))
    return dataclasses.replace(
        config,
        layers=tuple(layers),
        ropes=tuple(dict.fromkeys(ropes[slides] for slides in tables)),
        embedding_scale=embedding_scale(config.hidden_size),
    )


def rope_indices(
    is_sliding: Iterable[bool], ropes: Mapping[bool, RopeConfig]
) -> Mapping[bool, int]:
    """The index of each kind's rope among those that differ, for the kinds that there are."""
    kinds = sorted(set(is_sliding))
    distinct = list(dict.fromkeys(ropes[slides] for slides in kinds))
    return {slides: distinct.index(ropes[slides]) for slides in kinds}


def embedding_scale(hidden_size: int) -> float:
    """What embeddings are multiplied by. Models in bf16 round it, which is not followed."""
    return math.sqrt(hidden_size)


def optional_positive(fields: Fields, key: str) -> float | None:
    """A number above 0, or None for a null or an absent key."""
    return None if fields.get(key) is None else fields.positive(key)


def window_of(fields: Fields, is_sliding: Iterable[bool]) -> int | None:
    """``sliding_window``, which files need where a layer slides."""
    return fields.count("sliding_window", MAX_CONTEXT_TOKENS) if any(is_sliding) else None


def pattern_of(fields: Fields, num_layers: int, *, default: int | None = None) -> tuple[bool, ...]:
    """The layers that slide by ``PATTERN_KEY``.

    It is a truth value for each layer, or a number as in ``every_other_slides``.
    """
    if not is_list(fields.get(PATTERN_KEY)):
        pattern = fields.count(PATTERN_KEY, MAX_LAYERS, default, minimum=0)
        return every_other_slides(num_layers, pattern)
    flags = list_of_layers(fields, PATTERN_KEY, num_layers)
    if not all(isinstance(each, bool) for each in flags):
        raise fields.error(PATTERN_KEY, "must be truth values")
    return tuple(map(bool, flags))


def gguf_scale(config: ModelConfig, *, layers_of_27b: int) -> float:
    """The scale of attention in GGUF files of Gemma 2 and 3, which do not say it.

    As llama.cpp: by the head size, but for the 27B, which is known by its number of layers.
    """
    attention = config.layers[0].grouped_attention
    if config.num_layers == layers_of_27b:
        return float((config.hidden_size // attention.num_heads) ** -0.5)
    return float(attention.head_dim**-0.5)


def is_list(value: object) -> bool:
    """Whether metadata have a list of values, and not one."""
    return isinstance(value, Iterable) and not isinstance(value, str)


def list_of_layers(fields: Fields, key: str, num_layers: int) -> tuple[object, ...]:
    """The values of a list of metadata, which has one for each layer."""
    value = fields.get(key)
    if not isinstance(value, Iterable) or not isinstance(value, Sized) or len(value) != num_layers:
        raise fields.error(key, f"must have a value for each of {num_layers} layers")
    return tuple(value)
