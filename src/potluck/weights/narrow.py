"""Float weights for a backend that computes with float16 and has no bfloat16.

A bfloat16 has float32's exponents: a good part of a model's weights is below float16's smallest
number (2^-24), and some may be beyond its largest (65504). A power of two that the backend takes
back after its product brings most tensors into range, without an error; those that it cannot are
kept as they are stored, and are then widened in the backend's kernel. Nothing becomes infinite or
zero. The native engine needs none of this: it keeps bfloat16 and widens it in its kernels, and no
other backend is in this build yet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from potluck import kernels
from potluck.errors import ModelFileError
from potluck.kernels import runner
from potluck.types.tensor import TensorFormat, TensorInfo, TensorSource
from potluck.weights.report import TensorRemark

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAGING_BYTES = 2**18
"""Of stored rows that are worked on at once (or one row, where that is more). What is made of them
on the way takes at most ten times as much."""

_LARGEST = 65504.0
"""``(2 - 2**-10) * 2**15``, float16's largest number."""

_SMALLEST_EXACT = {TensorFormat.BF16: 2.0**-17, TensorFormat.F32: 2.0**-14}
"""From here on no bits are lost to subnormals: a bfloat16 of at least 2^-17 ends at 2^-24, which is
float16's last bit; a float32 is rounded to 11 bits as long as float16 is normal."""


def f16_exponent(format: TensorFormat, largest: float, smallest: float) -> int | None:
    """The exponent nearest to 0 with which no bits are lost to float16's range, or None.

    Numbers are of ``format``, BF16 or F32, with magnitudes from ``smallest`` (of those that are not
    zero) to ``largest``; both are 0 where all are zero. Times ``2 ** exponent``, as float16, a BF16
    is exact, and an F32 rounded by a relative 2^-11 at most.
    """
    if largest == 0:
        return 0
    least = _SMALLEST_EXACT[format]
    # frexp: x = m * 2**e with 0.5 <= m < 1.
    up = max(0, math.frexp(least)[1] - math.frexp(smallest)[1])
    down = max(0, math.frexp(largest)[1] - math.frexp(_LARGEST)[1])
    if math.ldexp(largest, -down) > _LARGEST:  # of the same binade
        down += 1
    exponent = up - down
    fits = math.ldexp(largest, exponent) <= _LARGEST and math.ldexp(smallest, exponent) >= least
    return exponent if fits else None


class NarrowedSource:
    """``raw`` with its F32 and BF16 matrices as float16 where that can hold them.

    A ``TensorSource``. Vectors and other formats are as they are in ``raw``, which it owns and
    closes. ``info`` of a matrix reads the whole of it once, block by block, to find its range;
    ``read_rows`` reads it again. ``path`` is what messages call the model.
    """

    def __init__(
        self, raw: TensorSource, pool: runner.ThreadPool | None, *, path: str = "the model"
    ) -> None:
        self._raw = raw
        self._pool = pool
        self._path = path
        self._exponents: dict[str, int | None] = {}
        self._errors: dict[str, float] = {}

    def names(self) -> Iterable[str]:
        """As ``raw``."""
        return self._raw.names()

    def info(self, name: str) -> TensorInfo:
        """What ``read_rows`` gives for ``name``.

        Raises as ``raw`` does, and ``ModelFileError`` for a value that is not finite.
        """
        info = self._raw.info(name)
        if self._exponent(info) is None:
            return info
        return dataclasses.replace(info, format=TensorFormat.F16)

    def exponent(self, name: str) -> int:
        """The backend divides by ``2 ** exponent`` what it computed with this tensor."""
        return self._exponent(self._raw.info(name)) or 0

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Rows ``[start_row, end_row)`` as ``info`` says they are. Raises as it does."""
        info = self._raw.info(name)
        exponent = self._exponent(info)
        if exponent is None:
            self._raw.read_rows(name, start_row, end_row, out)
            return
        target = np.frombuffer(out, np.float16).reshape(end_row - start_row, info.num_columns)
        for first, stored in self._blocks(info, start_row, end_row):
            x = _widened(stored, info)
            narrow = np.ldexp(x, exponent).astype(np.float16)
            target[first - start_row : first - start_row + len(x)] = narrow
            if info.format is TensorFormat.F32:
                self._note_error(name, x, np.ldexp(narrow.astype(np.float32), -exponent))

    def remarks(self) -> tuple[TensorRemark, ...]:
        """What became of the tensors asked for that are not simply the same numbers as float16."""
        remarks = []
        for name, exponent in self._exponents.items():
            label = self._raw.info(name).format.label
            error = self._errors.get(name, 0.0)
            if exponent is None:
                remark = f"kept as {label}: its values span more than float16's range"
            elif exponent:
                remark = f"held as float16 times 2^{exponent}"
            elif error:
                remark = "rounded to float16"
            else:
                continue
            remarks.append(TensorRemark(name=name, remark=remark, relative_error=error))
        return tuple(remarks)

    def close(self) -> None:
        """Close the source below. Idempotent."""
        self._raw.close()

    def _exponent(self, info: TensorInfo) -> int | None:
        if info.format not in _SMALLEST_EXACT or len(info.shape) < 2:
            return None
        if info.name not in self._exponents:
            self._exponents[info.name] = f16_exponent(info.format, *self._range(info))
        return self._exponents[info.name]

    def _range(self, info: TensorInfo) -> tuple[float, float]:
        """The largest magnitude, and the smallest of what is not zero; 0 where nothing is."""
        largest, smallest = 0.0, math.inf
        for first, stored in self._blocks(info, 0, info.num_rows):
            num_rows = len(stored) // info.row_bytes
            try:
                found = kernels.f16_range(
                    stored, info.format.label, num_rows, info.num_columns, self._pool
                )
            except runner.Error as error:
                problem = f"{info.name}, of rows from {first}: {error}"
                raise ModelFileError(
                    self._path, problem, hint="the weights are damaged: get the model again"
                ) from error
            if found.largest > 0:
                largest, smallest = max(largest, found.largest), min(smallest, found.smallest)
        return largest, smallest if largest > 0 else 0.0

    def _blocks(
        self, info: TensorInfo, start_row: int, end_row: int
    ) -> Iterable[tuple[int, NDArray[np.uint8]]]:
        """The first row and the stored bytes of some rows at a time, in one buffer."""
        step = max(1, STAGING_BYTES // max(1, info.row_bytes))
        buffer = np.empty(min(step, end_row - start_row) * info.row_bytes, np.uint8)
        for first in range(start_row, end_row, step):
            end = min(first + step, end_row)
            stored = buffer[: (end - first) * info.row_bytes]
            self._raw.read_rows(info.name, first, end, stored.data)
            yield first, stored

    def _note_error(self, name: str, x: NDArray[np.float32], held: NDArray[np.float32]) -> None:
        difference = np.abs(held - x)
        np.divide(difference, np.abs(x), out=difference, where=x != 0)
        self._errors[name] = max(self._errors.get(name, 0.0), float(difference.max(initial=0.0)))


def _widened(stored: NDArray[np.uint8], info: TensorInfo) -> NDArray[np.float32]:
    """Stored rows as float32 ``[rows, columns]``, exactly."""
    if info.format is TensorFormat.F32:
        return stored.view(np.float32).reshape(-1, info.num_columns)
    bits = stored.view(np.uint16).astype(np.uint32)
    bits <<= 16
    return bits.view(np.float32).reshape(-1, info.num_columns)
