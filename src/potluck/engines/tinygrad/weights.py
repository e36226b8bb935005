"""Weights on the device, as float32 (or float16 where matrices are multiplied in it)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.reference_weights import ReferenceWeights
from potluck.engines.tinygrad.adapter import Tensor, dtypes, tinygrad_errors

if TYPE_CHECKING:
    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMatrix:
    """A matrix ``[rows, columns]`` on the device."""

    values: Tensor

    def linear(self, x: Tensor) -> Tensor:
        """``[T, rows]`` float32 for ``x`` float32 ``[T, columns]``."""
        return x.cast(self.values.dtype).matmul(self.values.T, dtype=dtypes.float)

    def rows(self, tokens: Tensor) -> Tensor:
        """``[T, columns]`` float32 for ``tokens`` int32 ``[T]``."""
        return self.values[tokens].cast(dtypes.float)


class DeviceWeights:
    """A ``TensorSink`` that takes the tensors of ``program`` and nothing else."""

    def __init__(self, program: Program, device: str, has_f16: bool) -> None:
        self._device = device
        self._matrix_dtype = np.float16 if has_f16 else np.float32
        self._loading = ReferenceWeights(program)
        self._tensors: dict[str, Tensor] = {}

    def sink(self) -> DeviceWeights:
        return self

    @property
    def num_bytes(self) -> int:
        return sum(int(tensor.nbytes()) for tensor in self._tensors.values())

    def matrix(self, name: str) -> DeviceMatrix:
        return DeviceMatrix(values=self._tensors[name])

    def vector(self, name: str) -> Tensor:
        return self._tensors[name]

    def missing(self) -> tuple[str, ...]:
        return self._loading.missing()

    def clear(self) -> None:
        self._tensors.clear()
        self._loading.clear()

    def begin(self, info: TensorInfo) -> None:
        self._loading.begin(info)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        self._loading.write_rows(name, start_row, end_row, data)

    def finish(self, name: str) -> None:
        self._loading.finish(name)
        values = self._loading[name]
        if values.ndim == 2:
            values = values.astype(self._matrix_dtype)
        with tinygrad_errors():
            self._tensors[name] = Tensor(values, device=self._device).realize()
