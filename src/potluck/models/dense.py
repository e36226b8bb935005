"""Readers that dense families share."""

from __future__ import annotations

from collections.abc import Mapping

from potluck.models import hugging_face
from potluck.models.fields import Fields, unsupported
from potluck.models.names import FileKind, StoredPart, concatenated

FUSED_GATE_UP: Mapping[FileKind, Mapping[str, StoredPart]] = {
    FileKind.HUGGING_FACE: concatenated("mlp.gate_up_proj", "mlp.gate", "mlp.up"),
    FileKind.GGUF: concatenated("ffn_up", "mlp.gate", "mlp.up"),
}
"""Stems of families with one matrix for gate and up, in which the rows of the gate come first."""


def refuse_other_yarn_factor(fields: Fields, factor: float) -> None:
    """Raise unless ``rope.scaling.yarn_attn_factor``, which llama.cpp ignores, is its own."""
    key = "rope.scaling.yarn_attn_factor"
    computed = hugging_face.yarn_scale(factor)
    if fields.get(key) is not None and abs(fields.positive(key) / computed - 1) > 1e-4:
        raise unsupported(f"{fields.prefix}{key}={fields.get(key)}")
