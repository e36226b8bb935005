"""What the native engine multiplies activations with weights in."""

from __future__ import annotations

import enum

from potluck.types.tensor import TensorFormat


class Operands(enum.Enum):
    """What a product with weights takes both factors as; the values are the core's names."""

    INT8 = "int8"
    BF16 = "bf16"
    F32 = "f32"


def operands_of(format: TensorFormat, *, is_fast: bool) -> Operands:
    """What the native engine multiplies weights of ``format`` in.

    ``is_fast``: whether it is by the fast products of bf16, where there are any of the format.
    """
    if is_fast:
        return Operands.BF16
    if format.is_quantized:
        return Operands.INT8
    return Operands.F32
