"""Decoding weights that are stored as several tensors.

Integers and their scales are converted to blocks of 32 in GGUF's layouts, which are those of
``ggml-common.h``; ``potluck.engines.dequantize`` defines their values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.files import quoted
from potluck.formats.source import FileTensor
from potluck.types.tensor import TensorFormat

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]

ReadBytes: TypeAlias = Callable[[FileTensor, int, memoryview], None]
"""Fills a buffer with a tensor's bytes from an offset on."""

PIECE_ELEMENTS = 2**18
"""The bytes decoded at a time (or one row, if larger), so that temporary arrays stay in a core's
cache."""

PIECE_BYTES = 24 * PIECE_ELEMENTS
"""The memory for decoding a piece: at most two arrays of 8-byte indices, one per element."""

_BLOCK = 32


def read_array(read: ReadBytes, tensor: FileTensor, dtype: str) -> NDArray[np.generic]:
    """Read a whole tensor of fixed-size numbers, whose memory counts in ``decoding_bytes``."""
    data = bytearray(tensor.num_bytes)
    if data:
        read(tensor, 0, memoryview(data))
    return np.frombuffer(data, dtype=dtype).reshape(tensor.shape)


_SCALE_TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E8M0": "u1", "U8": "u1"}


def read_scales(read: ReadBytes, tensor: FileTensor) -> NDArray[np.float32]:
    """Read scales as float32, which represents them exactly; single bytes are exponents of 2."""
    stored = read_array(read, tensor, _SCALE_TYPES[tensor.type_name])
    if tensor.type_name == "BF16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if stored.dtype == np.uint8:
        exponents = stored.astype(np.int32)
        scales = np.ldexp(np.float32(1), exponents - 127).astype(np.float32)
        return np.where(exponents == 255, np.float32("nan"), scales).astype(np.float32)
    return stored.astype(np.float32)


def check_scales(tensor: FileTensor) -> None:
    """Raise ``UnsupportedModelError`` unless ``read_scales`` supports the type of the scales."""
    if tensor.type_name not in _SCALE_TYPES:
        raise unreadable(tensor, f"scales of type {tensor.type_name}")


def check_type(tensor: FileTensor, *type_names: str) -> None:
    """Raise ``ModelFileError`` unless the tensor has one of these types."""
    if tensor.type_name not in type_names:
        raise contradiction(tensor, f"is {tensor.type_name}, but must be {type_names[0]}")


def check_shape(tensor: FileTensor, *shapes: tuple[int, ...]) -> None:
    """Raise ``ModelFileError`` unless the tensor has one of these shapes."""
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise contradiction(tensor, f"has shape {list(tensor.shape)}, but must have {wanted}")


def contradiction(tensor: FileTensor, problem: str) -> ModelFileError:
    """Return the error for a tensor that contradicts other tensors or the configuration."""
    return ModelFileError(
        tensor.file.path,
        f"tensor {quoted(tensor.name)} {problem}",
        hint="the file is damaged, or its quantization_config belongs to another model",
    )


def unreadable(tensor: FileTensor, feature: str) -> UnsupportedModelError:
    """Return the error for a tensor that is stored in a form that this build cannot read."""
    return UnsupportedModelError(
        f"{tensor.file.path}: tensor {quoted(tensor.name)}: Potluck cannot read {feature}",
        missing=(feature,),
        hint="choose other files of the same model, such as GGUF",
    )


def halves_from_pairs(packed: Bytes) -> Bytes:
    """Reorder blocks of 32 nibbles, so that byte ``j`` has numbers ``j`` and ``j + 16`` instead of
    adjacent ones.
    """
    first, second = packed[:, :8], packed[:, 8:]
    out = np.empty_like(packed)
    out[:, 0::2] = (first & 15) | (second << 4)
    out[:, 1::2] = (first >> 4) | (second & 0xF0)
    return out


def blocks_of_q4_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` integers from 0 to 15, which represent -8 to 7, and scales."""
    out = np.empty((len(values), TensorFormat.Q4_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:] = _nibbles(values)
    return out


def blocks_of_q5_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` integers from 0 to 31, which represent -16 to 15, and scales."""
    out = np.empty((len(values), TensorFormat.Q5_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:6] = np.packbits(values >> 4, axis=1, bitorder="little")
    out[:, 6:] = _nibbles(values & np.uint8(15))
    return out


def blocks_of_q8_0(values: Bytes, scales: NDArray[np.float16]) -> Bytes:
    """Convert ``[num_blocks, 32]`` bytes of int8 and their scales."""
    out = np.empty((len(values), TensorFormat.Q8_0.block_bytes), dtype=np.uint8)
    out[:, :2] = _bytes_of(scales)
    out[:, 2:] = values
    return out


def _nibbles(values: Bytes) -> Bytes:
    low, high = values[:, : _BLOCK // 2], values[:, _BLOCK // 2 :]
    return low | (high << np.uint8(4))


def _bytes_of(scales: NDArray[np.float16]) -> Bytes:
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)
