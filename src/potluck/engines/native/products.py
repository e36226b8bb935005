"""The arithmetic of the native engine's products of activations with weights."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType

from potluck.types.tensor import TensorFormat


class Operands(enum.Enum):
    """The operand type of products with weights; the values are the core's names."""

    INT8 = "int8"
    BF16 = "bf16"
    F32 = "f32"


def operands_of(format: TensorFormat, *, is_fast: bool) -> Operands:
    """Return the operand type of products with weights of ``format``.

    ``is_fast``: whether to use the fast bf16 products, if the format has any.
    """
    if is_fast:
        return Operands.BF16
    if format.is_quantized:
        return Operands.INT8
    return Operands.F32


EXCHANGED_BYTES: Mapping[Operands, float] = MappingProxyType(
    {Operands.INT8: 1 + 8 / 32, Operands.BF16: 2.0, Operands.F32: 4.0}
)
"""Size of a value in the form in which the members of a group exchange it for such a product: int8
has a scale and a sum, of four bytes each, for every 32 values."""
