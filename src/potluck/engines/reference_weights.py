"""Where the reference engine keeps its weights: whole tensors, as float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from potluck.engines.dequantize import dequantize
from potluck.errors import EngineError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.program import Program
    from potluck.types.tensor import TensorInfo


@dataclass(slots=True, kw_only=True)
class _Loading:
    """A tensor of which rows ``[0, num_written)`` are there."""

    info: TensorInfo
    values: NDArray[np.float32]
    num_written: int = 0


class ReferenceWeights:
    """A ``TensorSink`` that takes the tensors of ``program`` and nothing else."""

    def __init__(self, program: Program) -> None:
        self._shapes = {weight.name: weight.shape for weight in program.weights}
        self._loading: dict[str, _Loading] = {}
        self._tensors: dict[str, NDArray[np.float32]] = {}

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        """Float32, of the shape in the program."""
        return self._tensors[name]

    def missing(self) -> tuple[str, ...]:
        """Names that have not been loaded."""
        return tuple(name for name in self._shapes if name not in self._tensors)

    def begin(self, info: TensorInfo) -> None:
        """Make room; the name and the shape must be the program's."""
        if info.name not in self._shapes:
            raise _refused(f"the program reads no tensor {info.name}")
        if info.shape != self._shapes[info.name]:
            raise _refused(f"{info.name} is {info.shape}, and must be {self._shapes[info.name]}")
        if info.name in self._loading or info.name in self._tensors:
            raise _refused(f"{info.name} is written twice")
        values = np.empty((info.num_rows, info.num_columns), dtype=np.float32)
        self._loading[info.name] = _Loading(info=info, values=values)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Dequantize the rows after those written so far."""
        loading = self._get(name)
        info = loading.info
        if start_row != loading.num_written or not start_row <= end_row <= info.num_rows:
            raise _refused(
                f"rows {start_row} to {end_row} of {name} after row {loading.num_written}"
            )
        if data.nbytes != (end_row - start_row) * info.row_bytes:
            raise _refused(f"{data.nbytes} bytes for {end_row - start_row} rows of {name}")
        loading.values[start_row:end_row] = dequantize(data, info.format, info.num_columns)
        loading.num_written = end_row

    def finish(self, name: str) -> None:
        """The tensor is whole, and can be read from now on."""
        loading = self._get(name)
        if loading.num_written < loading.info.num_rows:
            raise _refused(f"{name} ends after row {loading.num_written}")
        self._tensors[name] = loading.values.reshape(loading.info.shape)
        del self._loading[name]

    def clear(self) -> None:
        """Free everything."""
        self._loading.clear()
        self._tensors.clear()

    def _get(self, name: str) -> _Loading:
        if name not in self._loading:
            raise _refused(f"{name} was not begun")
        return self._loading[name]


def _refused(problem: str) -> EngineError:
    return EngineError(
        f"cannot take the weights: {problem}", hint="this is a defect in Potluck; please report it"
    )
