"""Readers that dense families share."""

from __future__ import annotations

import math
from collections.abc import Mapping

from potluck.models import hugging_face
from potluck.models.fields import MAX_CONTEXT_TOKENS, Fields, unsupported
from potluck.models.names import (
    GGUF_NAMES,
    HUGGING_FACE_NAMES,
    INTERLEAVED_HEADS,
    FileKind,
    NameTable,
    StoredPart,
)
from potluck.types.tensor import TensorSource

FUSED_GATE_UP: Mapping[FileKind, Mapping[str, StoredPart]] = {
    FileKind.HUGGING_FACE: {
        "mlp.gate": StoredPart(name="mlp.gate_up_proj", is_part=True),
        "mlp.up": StoredPart(name="mlp.gate_up_proj", after=("mlp.gate",)),
    },
    FileKind.GGUF: {
        "mlp.gate": StoredPart(name="ffn_up", is_part=True),
        "mlp.up": StoredPart(name="ffn_up", after=("mlp.gate",)),
    },
}
"""Stems of families with one matrix for gate and up, in which the rows of the gate come first."""

CONVERTED_NAMES: Mapping[FileKind, NameTable] = {
    FileKind.HUGGING_FACE: HUGGING_FACE_NAMES,
    FileKind.GGUF: GGUF_NAMES.changed(INTERLEAVED_HEADS),
}
"""The usual names of families whose heads are interleaved only in GGUF files, like Llama's."""


def windows(fields: Fields) -> tuple[int | None, ...]:
    """Return the windows of layers: ``sliding_window`` in the sliding layers of ``layer_types``."""
    slides = hugging_face.sliding_layers(fields)
    window = fields.count("sliding_window", MAX_CONTEXT_TOKENS) if any(slides) else None
    return tuple(window if each else None for each in slides)


def has_tensor(source: TensorSource, name: str) -> bool:
    """Return whether a file has a tensor."""
    return name in frozenset(source.names())


def refuse_other_yarn_factor(fields: Fields, factor: float) -> None:
    """Raise unless ``rope.scaling.yarn_attn_factor``, which llama.cpp ignores, is its own."""
    key = "rope.scaling.yarn_attn_factor"
    computed = 1.0 if factor <= 1 else 1.0 + 0.1 * math.log(factor)
    if fields.get(key) is not None and abs(fields.positive(key) / computed - 1) > 1e-4:
        raise unsupported(f"{fields.prefix}{key}={fields.get(key)}")
