"""Stored tensors that belong to a weight, and what decodes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import quoted
from potluck.formats.source import FileTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from potluck.types.tensor import TensorInfo

ReadBytes: TypeAlias = Callable[[FileTensor, int, memoryview], None]
"""Fills a buffer with bytes of a tensor from an offset on."""

PIECE_ELEMENTS = 2**18
"""Decoded at a time (or one row, where that is more): temporary arrays stay in a core's cache."""

PIECE_BYTES = 24 * PIECE_ELEMENTS
"""What decoding a piece holds in all: indices of 8 bytes for each element at most, twice."""


class EncodedTensor(Protocol):
    """A weight that several tensors are stored for."""

    @property
    def info(self) -> TensorInfo:
        """What it is shown as."""
        ...

    @property
    def parts(self) -> tuple[FileTensor, ...]:
        """The tensors that are stored for it."""
        ...

    @property
    def decoding_bytes(self) -> int:
        """What reading it holds besides its rows."""
        ...

    def read_rows(self, start_row: int, end_row: int, out: memoryview) -> None:
        """Fill ``out`` with rows in the format of ``info``."""
        ...

    def release(self) -> None:
        """Let go of what the next read can get again."""
        ...


def read_array(read: ReadBytes, tensor: FileTensor, dtype: str) -> NDArray[np.generic]:
    """A whole tensor of fixed-size numbers; what it holds counts in ``decoding_bytes``."""
    data = bytearray(tensor.num_bytes)
    if data:
        read(tensor, 0, memoryview(data))
    return np.frombuffer(data, dtype=dtype).reshape(tensor.shape)


_SCALE_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E8M0": "u1", "U8": "u1"}


def read_scales(read: ReadBytes, tensor: FileTensor) -> NDArray[np.float32]:
    """Scales as float32, which holds each exactly; of one byte they are exponents of 2."""
    stored = read_array(read, tensor, _SCALE_TYPES[tensor.type_name])
    if tensor.type_name == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if stored.dtype == np.uint8:
        exponents = stored.astype(np.int32)
        scales = np.ldexp(np.float32(1), exponents - 127).astype(np.float32)
        return np.where(exponents == 255, np.float32("nan"), scales).astype(np.float32)
    return stored.astype(np.float32)


def check_scales(tensor: FileTensor) -> None:
    """Raise ``UnsupportedModelError`` for scales of another type than ``read_scales`` reads."""
    if tensor.type_name not in _SCALE_TYPES:
        raise unreadable(tensor, f"scales of the type {tensor.type_name}")


def check_type(tensor: FileTensor, *type_names: str) -> None:
    """Raise ``ModelFileError`` unless the tensor has one of these types."""
    if tensor.type_name not in type_names:
        raise contradiction(tensor, f"is {tensor.type_name}, and must be {type_names[0]}")


def check_shape(tensor: FileTensor, *shapes: tuple[int, ...]) -> None:
    """Raise ``ModelFileError`` unless the tensor has one of these shapes."""
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise contradiction(tensor, f"has the shape {list(tensor.shape)}, and must have {wanted}")


def contradiction(tensor: FileTensor, problem: str) -> ModelFileError:
    """The error that a tensor is not what the others and the configuration say."""
    return ModelFileError(
        tensor.file.path,
        f"tensor {quoted(tensor.name)} {problem}",
        hint="the file is damaged, or its quantization_config is of another model",
    )


def unreadable(tensor: FileTensor, feature: str) -> UnsupportedModelError:
    """The error that a tensor is stored in a way that this build cannot read."""
    return UnsupportedModelError(
        f"{tensor.file.path}: tensor {quoted(tensor.name)}: Potluck cannot read {feature}",
        missing=(feature,),
        hint="choose other files of the same model, such as GGUF",
    )


def num_elements(shape: tuple[int, ...]) -> int:
    """The product of ``shape``."""
    return math.prod(shape)
