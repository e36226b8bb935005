"""What the native engine multiplies activations with weights in."""

from __future__ import annotations

import enum

from potluck.types.tensor import TensorFormat


class Arithmetic(enum.Enum):
    """What a product with weights is computed in; the values are the core's names."""

    INT8 = "int8"
    BF16 = "bf16"
    F32 = "f32"


def arithmetic_of(format: TensorFormat, *, has_bf16: bool) -> Arithmetic:
    """What the native engine multiplies weights of ``format`` in.

    ``has_bf16``: whether the instruction set multiplies bf16; without it they are widened.
    """
    if format.is_quantized:
        return Arithmetic.INT8
    if format is TensorFormat.BF16 and has_bf16:
        return Arithmetic.BF16
    return Arithmetic.F32
