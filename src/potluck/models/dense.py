"""Readers that dense families share."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import hugging_face
from potluck.models.fields import Fields, unsupported
from potluck.models.names import (
    FileKind,
    StoredPart,
)

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


def refuse_other_yarn_factor(fields: Fields, factor: float) -> None:
    """Raise unless ``rope.scaling.yarn_attn_factor``, which llama.cpp ignores, is its own."""
    key = "rope.scaling.yarn_attn_factor"
    computed = hugging_face.yarn_scale(factor)
    if fields.get(key) is not None and abs(fields.positive(key) / computed - 1) > 1e-4:
        raise unsupported(f"{fields.prefix}{key}={fields.get(key)}")
