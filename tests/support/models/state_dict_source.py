"""A TensorSource over arrays in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import gguf
import numpy as np
from numpy.typing import NDArray

from potluck.types.tensor import TensorFormat, TensorInfo


class StateDictSource:
    """Tensors by name, matrices stored as ``matrix_format`` and vectors as float32.

    The encoding and ``values`` are the ``gguf`` package's, which cannot encode K formats.
    """

    def __init__(
        self,
        tensors: Mapping[str, NDArray[np.float32]],
        *,
        matrix_format: TensorFormat = TensorFormat.F32,
    ) -> None:
        self._stored: dict[str, NDArray[np.uint8]] = {}
        self._infos: dict[str, TensorInfo] = {}
        for name, values in tensors.items():
            tensor_format = matrix_format if values.ndim > 1 else TensorFormat.F32
            info = TensorInfo(name=name, shape=values.shape, format=tensor_format)
            encoded = gguf.quants.quantize(np.ascontiguousarray(values), _ggml_type(tensor_format))
            self._infos[name] = info
            self._stored[name] = encoded.view(np.uint8).reshape(info.num_rows, info.row_bytes)

    def names(self) -> Iterable[str]:
        return self._infos.keys()

    def info(self, name: str) -> TensorInfo:
        return self._infos[name]

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        out[:] = self._stored[name][start_row:end_row].tobytes()

    def close(self) -> None:
        self._stored.clear()

    def values(self, name: str) -> NDArray[np.float32]:
        """What the stored bytes stand for."""
        info = self._infos[name]
        decoded = gguf.quants.dequantize(self._stored[name], _ggml_type(info.format))
        return np.asarray(decoded, dtype=np.float32).reshape(info.shape)


def _ggml_type(tensor_format: TensorFormat) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[tensor_format.name]
