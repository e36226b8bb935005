"""Common parts of the Gemma families.

Embeddings are scaled by the square root of the hidden size, each branch has a norm before and after
it, sliding-window layers alternate with others, and the head is the embedding. Published files
often omit keys of ``config.json``, so the defaults of ``transformers`` matter.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from potluck.models import gguf, hugging_face
from potluck.models.fields import MAX_CONTEXT_TOKENS, MAX_LAYERS, Fields, unsupported
from potluck.models.hugging_face import FULL, SLIDING
from potluck.models.layers import all_but_every_nth, with_attention, with_windows
from potluck.models.names import GGUF_NAMES, HUGGING_FACE_NAMES, FileKind, NameTable, StoredPart
from potluck.types.model import ModelConfig, NormPlaces, RopeConfig
from potluck.types.program import Activation

ACTIVATIONS: Mapping[str, Activation] = {"gelu_pytorch_tanh": Activation.GELU_TANH}
"""By ``hidden_activation``."""

PATTERN_KEY = "attention.sliding_window_pattern"
"""In GGUF files: which layers have a sliding window, as a list or a number."""

SKIPPED: Mapping[str, re.Pattern[str]] = {
    "a vision tower": re.compile(
        r"(model\.)?(vision_tower|multi_modal_projector|embed_vision|vision_embedder)\..+"
    ),
    "an audio tower": re.compile(r"(model\.)?(audio_tower|embed_audio)\..+"),
}
"""Tensors of the non-text parts of a model, by part."""

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
    """Return the names of Gemma 2 and 3, whose safetensors store norms' weights less 1.

    GGUF files store the weight itself.
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
    """Return ``fields`` with ``defaults`` for absent keys; a null stays.

    The activation is moved to ``hidden_act``, the key of other families. Gemma 2's files may have
    both keys; ``hidden_activation`` takes precedence.
    """
    values = {**defaults, **fields.values}
    if values.get("use_bidirectional_attention") not in (None, False):
        raise unsupported(f"use_bidirectional_attention={values['use_bidirectional_attention']}")
    activation = fields.text("hidden_activation", "gelu_pytorch_tanh")
    if activation not in ACTIVATIONS:
        raise unsupported(f"hidden_activation={activation}")
    values["hidden_act"] = activation
    return dataclasses.replace(fields, values=values)


def sliding_layers(fields: Fields, *, pattern: int) -> tuple[bool, ...]:
    """Return whether each layer has a sliding window, according to ``layer_types``.

    Without it, all have one except every ``pattern``-th.
    """
    if not fields.texts("layer_types"):
        return all_but_every_nth(hugging_face.num_hidden_layers(fields), pattern)
    return hugging_face.sliding_layers(fields)


def read_section_rope(
    fields: Fields,
    kind: str,
    *,
    head_dim: int,
    theta: float,
    scaling: Mapping[str, object] | None = None,
) -> RopeConfig:
    """Return the rope of layers of ``kind``, from their section of ``rope_parameters``.

    ``theta`` is the default of a section without one, and ``scaling`` a default for its other keys.
    """
    parameters = fields.section("rope_parameters")
    if parameters is not None and (unknown := sorted(set(parameters.values) - {FULL, SLIDING})):
        raise unsupported(*(f"{key} in rope_parameters" for key in unknown))
    section = None if parameters is None else parameters.section(kind)
    values = {**({} if section is None else section.values), **(scaling or {})}
    if values.get("truncate", True) is not True:
        # transformers 5 looks for it outside the section, where it is not found.
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
        # If each kind of layer has a rope, only the keys in its section count.
        "original_max_position_embeddings": None,
    }
    return hugging_face.read_rope(
        dataclasses.replace(fields, values=view),
        head_dim=head_dim,
        max_context_tokens=fields.count("max_position_embeddings", MAX_CONTEXT_TOKENS, minimum=2),
    )


def with_sandwich_norms(
    config: ModelConfig,
    *,
    is_sliding: Sequence[bool],
    window: int | None,
    ropes: Mapping[bool, RopeConfig],
    scale: float,
    softcap: float | None = None,
    logit_softcap: float | None = None,
) -> ModelConfig:
    """Return ``config`` with Gemma's norms and embedding scale, and two kinds of layers.

    ``scale`` and ``softcap`` apply to all attention, and ``logit_softcap`` to the head.
    """
    config = with_two_kinds(config, is_sliding, window, ropes, NormPlaces.SANDWICH)
    config = with_attention(
        config, lambda _, each: dataclasses.replace(each, scale=scale, softcap=softcap)
    )
    # bf16 models round it; Potluck does not.
    return dataclasses.replace(
        config, embedding_scale=math.sqrt(config.hidden_size), logit_softcap=logit_softcap
    )


def with_two_kinds(
    config: ModelConfig,
    is_sliding: Sequence[bool],
    window: int | None,
    ropes: Mapping[bool, RopeConfig],
    norms: NormPlaces,
) -> ModelConfig:
    """Return ``config`` with ``norms``, and windows in some layers.

    ``ropes`` maps whether a layer slides to its rope.
    """
    distinct = tuple(dict.fromkeys(ropes[slides] for slides in sorted(set(is_sliding))))
    indices = {slides: distinct.index(ropes[slides]) for slides in set(is_sliding)}
    config = with_windows(config, is_sliding, window, indices, norms)
    return dataclasses.replace(config, ropes=distinct)


def optional_positive(fields: Fields, key: str) -> float | None:
    """Return a number above 0, or None for a null or absent key."""
    return None if fields.get(key) is None else fields.positive(key)


def window_of(fields: Fields, is_sliding: Iterable[bool]) -> int | None:
    """Return ``sliding_window``, which is required if a layer slides."""
    return fields.count("sliding_window", MAX_CONTEXT_TOKENS) if any(is_sliding) else None


def pattern_of(fields: Fields, num_layers: int, *, default: int | None = None) -> tuple[bool, ...]:
    """Return the sliding layers according to ``PATTERN_KEY``.

    It is a boolean for each layer, or a number as in ``all_but_every_nth``.
    """
    if not gguf.is_list(fields.get(PATTERN_KEY)):
        pattern = fields.count(PATTERN_KEY, MAX_LAYERS, default, minimum=0)
        return all_but_every_nth(num_layers, pattern)
    flags = gguf.values_by_layer(fields, PATTERN_KEY, num_layers)
    if not all(isinstance(each, bool) for each in flags):
        raise fields.error(PATTERN_KEY, "must be booleans")
    return tuple(map(bool, flags))


def gguf_scale(config: ModelConfig, *, layers_of_27b: int) -> float:
    """Return the attention scale for GGUF files of Gemma 2 and 3, which do not contain it.

    As in llama.cpp it follows from the head size, except for the 27B, which is recognized by its
    number of layers.
    """
    attention = config.layers[0].grouped_attention
    if config.num_layers == layers_of_27b:
        return float((config.hidden_size // attention.num_heads) ** -0.5)
    return float(attention.head_dim**-0.5)
