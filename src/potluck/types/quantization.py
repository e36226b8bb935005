"""Formats that weights can be brought into while they are loaded."""

from __future__ import annotations

import enum

from potluck.types.tensor import TensorFormat, TensorInfo

_CONVERTED = frozenset({TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16})


class Quantization(enum.Enum):
    """What becomes of matrices stored as floats, most precise first."""

    NONE = "none"
    Q8_0 = "q8_0"
    Q6_K = "q6_k"
    Q4_K = "q4_k"
    Q4_0 = "q4_0"

    def target(self, info: TensorInfo) -> TensorFormat:
        """The format that a stored tensor is loaded in.

        Vectors stay as they are, and so does what is quantized already: quantizing twice loses
        twice. Rows that are no whole blocks of a K type (256) become Q8_0, those that are no whole
        blocks of 32 stay.
        """
        if self is Quantization.NONE or len(info.shape) < 2 or info.format not in _CONVERTED:
            return info.format
        for format in (TensorFormat[self.name], TensorFormat.Q8_0):
            if info.num_columns % format.block_elements == 0:
                return format
        return info.format
