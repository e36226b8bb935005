"""The reference engine's weights: whole tensors, as float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.dequantize import dequantize
from potluck.engines.step_checks import check_begin, check_rows, check_whole, weights_refused

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo


@dataclass(slots=True, kw_only=True)
class _Loading:
    """A tensor whose rows ``[0, num_written)`` have been written."""

    info: TensorInfo
    values: NDArray[np.float32]
    num_written: int = 0


class ReferenceWeights:
    """A ``TensorSink`` that accepts the tensors of ``program`` and nothing else."""

    def __init__(self, program: Program) -> None:
        self._shapes = {weight.name: weight.shape for weight in program.weights}
        self._loading: dict[str, _Loading] = {}
        self._tensors: dict[str, NDArray[np.float32]] = {}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Return a weight as float32, in the program's shape."""
        return self._tensors[name]

    def missing(self) -> tuple[str, ...]:
        """Return names that have not been loaded."""
        return tuple(name for name in self._shapes if name not in self._tensors)

    def begin(self, info: TensorInfo) -> None:
        """Allocate the tensor; its name and shape must be the program's."""
        check_begin(self._shapes, info, set(self.missing()) - self._loading.keys())
        values = np.empty((info.num_rows, info.num_columns), dtype=np.float32)
        self._loading[info.name] = _Loading(info=info, values=values)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Dequantize the rows after those written so far."""
        loading = self._get(name)
        info = loading.info
        check_rows(info, loading.num_written, start_row, end_row, data)
        loading.values[start_row:end_row] = dequantize(data, info.format, info.num_columns)
        loading.num_written = end_row

    def finish(self, name: str) -> None:
        """Finish the tensor, which can then be used."""
        loading = self._get(name)
        check_whole(loading.info, loading.num_written)
        self._tensors[name] = loading.values.reshape(loading.info.shape)
        del self._loading[name]

    def clear(self) -> None:
        """Free everything."""
        self._loading.clear()
        self._tensors.clear()

    def _get(self, name: str) -> _Loading:
        if name not in self._loading:
            raise weights_refused(f"{name} was not begun")
        return self._loading[name]
