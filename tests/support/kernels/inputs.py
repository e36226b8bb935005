"""Inputs for kernel tests: stored weights of every format, arrays with guarded surroundings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import gguf
import numpy as np
from numpy.typing import NDArray

from potluck import kernels
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat

FORMATS = COMPUTED_FORMATS
FLOAT_FORMATS = tuple(format for format in FORMATS if not format.is_quantized)
QUANTIZED_FORMATS = tuple(format for format in FORMATS if format.is_quantized)

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]

ArrayT = TypeVar("ArrayT", bound=np.generic)

U = 2.0**-24
"""The unit roundoff of float32: one rounding changes a result by at most ``U`` times itself, a
chain of n roundings by n U times the sum of the magnitudes (Higham, Accuracy and Stability of
Numerical Algorithms, 2002, section 3.1; n U is far below 1 here)."""

# Where the f16 scales lie in a block; the rest of a block may be any bytes.
_SCALE_OFFSETS = {
    TensorFormat.Q8_0: (0,),
    TensorFormat.Q4_0: (0,),
    TensorFormat.Q4_1: (0, 2),
    TensorFormat.Q5_0: (0,),
    TensorFormat.Q5_1: (0, 2),
    TensorFormat.Q4_K: (0, 2),
    TensorFormat.Q5_K: (0, 2),
    TensorFormat.Q6_K: (208,),
    TensorFormat.Q2_K: (80, 82),
    TensorFormat.Q3_K: (108,),
    TensorFormat.IQ4_NL: (0,),
    TensorFormat.IQ4_XS: (0,),
    TensorFormat.MXFP4: (),
}
# The largest factor of the f16 minimum, where a format has one: 6 bits in the K formats.
_MINIMUM_FACTORS = {
    TensorFormat.Q4_1: 1,
    TensorFormat.Q5_1: 1,
    TensorFormat.Q4_K: 63,
    TensorFormat.Q5_K: 63,
    TensorFormat.Q2_K: 15,
}


def scale_bytes(format: TensorFormat) -> list[int]:
    """The bytes of a quantized block that are scales and minimums of the whole block."""
    if format is TensorFormat.MXFP4:
        return [0]
    return [offset + i for offset in _SCALE_OFFSETS[format] for i in range(2)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredWeights:
    """A matrix as a file has it, and what it means.

    ``stored``: uint8 ``[rows, row bytes]``. ``values``: ``[rows, columns]`` by the ``gguf``
    package. ``minimums``: for each value a bound of the minimum's magnitude; 0 without one.
    """

    format: TensorFormat
    stored: U8 = field(repr=False)
    values: F32 = field(repr=False)
    minimums: F32 = field(repr=False)

    @property
    def num_columns(self) -> int:
        return int(self.values.shape[1])

    def panels(self, num_rows: int) -> U8:
        """The first ``num_rows`` rows packed at once."""
        label = self.format.label
        num_panels = -(-num_rows // 16)
        panels = np.zeros(num_panels * kernels.panel_bytes(label, self.num_columns), np.uint8)
        rows = np.ascontiguousarray(self.stored[:num_rows]).reshape(-1)
        kernels.pack_rows(label, self.num_columns, rows, 0, num_rows, panels)
        return panels


def make_weights(
    format: TensorFormat, num_rows: int, num_columns: int, rng: np.random.Generator
) -> StoredWeights:
    """Random weights: any bit pattern of the integers, scales of both signs and several sizes."""
    minimums = np.zeros((num_rows, num_columns), np.float32)
    if format is TensorFormat.F32:
        values = rng.standard_normal((num_rows, num_columns)).astype(np.float32)
        stored = values.view(np.uint8)
    elif format is TensorFormat.F16:
        stored = rng.standard_normal((num_rows, num_columns)).astype(np.float16).view(np.uint8)
        values = gguf.dequantize(stored.view(np.float16), gguf.GGMLQuantizationType.F16)
    elif format is TensorFormat.BF16:
        bits = rng.standard_normal((num_rows, num_columns)).astype(np.float32).view(np.uint32)
        stored = (bits >> 16).astype(np.uint16).view(np.uint8)
        values = gguf.dequantize(stored, gguf.GGMLQuantizationType.BF16)
    else:
        num_blocks = num_columns // format.block_elements
        shape = (num_rows, num_blocks, format.block_bytes)
        blocks = rng.integers(0, 256, shape, dtype=np.uint8)
        if format is TensorFormat.MXFP4:
            blocks[:, :, 0] = rng.integers(117, 123, shape[:2])
        for offset in _SCALE_OFFSETS[format]:
            magnitude = rng.uniform(0.25, 4.0, shape[:2]) * 1e-2
            scales = (magnitude * rng.choice([-1.0, 1.0], shape[:2])).astype(np.float16)
            blocks[:, :, offset : offset + 2] = scales[..., None].view(np.uint8)
            if offset != _SCALE_OFFSETS[format][0]:
                bound = np.abs(scales).astype(np.float32) * _MINIMUM_FACTORS[format]
                minimums = np.repeat(bound, format.block_elements, axis=1)
        stored = blocks.reshape(num_rows, -1)
        values = gguf.dequantize(stored, gguf.GGMLQuantizationType[format.name])
    return StoredWeights(
        format=format,
        stored=stored,
        values=np.ascontiguousarray(values, dtype=np.float32),
        minimums=minimums,
    )


class Guarded(Generic[ArrayT]):
    """A copy of an array, misaligned, with NaN (all bits set) before and after it.

    A kernel that reads outside gets NaN into its result; one that writes there is found by
    ``assert_intact``.
    """

    _GUARD_BYTES = 256

    def __init__(self, array: NDArray[ArrayT]) -> None:
        self._start = self._GUARD_BYTES + array.itemsize
        self._end = self._start + array.nbytes
        self._raw = np.full(self._end + self._GUARD_BYTES, 0xFF, np.uint8)
        inside: NDArray[Any] = self._raw[self._start : self._end].view(array.dtype)
        self.array: NDArray[ArrayT] = inside.reshape(array.shape)
        self.array[...] = array

    def assert_intact(self) -> None:
        """Nothing was written outside the array."""
        assert (self._raw[: self._start] == 0xFF).all()
        assert (self._raw[self._end :] == 0xFF).all()


def guarded(array: NDArray[ArrayT]) -> NDArray[ArrayT]:
    """A guarded copy of an input, which the kernel only reads."""
    return Guarded(array).array


def guarded_output(*shape: int, dtype: type[ArrayT]) -> Guarded[ArrayT]:
    """Room for an output, NaN all over (-1 for integers)."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Guarded(np.full(num_bytes, 0xFF, np.uint8).view(dtype).reshape(shape))


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays are equal byte by byte."""
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
