"""The formats, names and interfaces of tensors.

A weight is a matrix ``[rows, columns]`` (or a vector) whose rows are stored consecutively. A
quantized format stores each row as whole blocks of ``block_elements`` values. The formats and
their byte layouts are those of GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
and ``ggml-common.h``.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


class TensorFormat(enum.Enum):
    """A storage format: (name, elements per block, bytes per block, whether it has kernels).

    This is the authoritative table of formats. The C++ core has those with kernels, in the same
    order; tests check that every other table agrees with it. A format without kernels can be read,
    and is converted to another one when it is loaded (``loaded_as``).
    """

    F32 = ("f32", 1, 4)
    F16 = ("f16", 1, 2)
    BF16 = ("bf16", 1, 2)
    Q8_0 = ("q8_0", 32, 34)
    Q4_0 = ("q4_0", 32, 18)
    Q4_1 = ("q4_1", 32, 20)
    Q5_0 = ("q5_0", 32, 22)
    Q5_1 = ("q5_1", 32, 24)
    Q4_K = ("q4_k", 256, 144)
    Q5_K = ("q5_k", 256, 176)
    Q6_K = ("q6_k", 256, 210)
    Q2_K = ("q2_k", 256, 84)
    Q3_K = ("q3_k", 256, 110)
    IQ4_NL = ("iq4_nl", 32, 18)
    IQ4_XS = ("iq4_xs", 256, 136)
    MXFP4 = ("mxfp4", 32, 17)
    IQ1_S = ("iq1_s", 256, 50, False)
    IQ1_M = ("iq1_m", 256, 56, False)
    IQ2_XXS = ("iq2_xxs", 256, 66, False)
    IQ2_XS = ("iq2_xs", 256, 74, False)
    IQ2_S = ("iq2_s", 256, 82, False)
    IQ3_XXS = ("iq3_xxs", 256, 98, False)
    IQ3_S = ("iq3_s", 256, 110, False)
    TQ1_0 = ("tq1_0", 256, 54, False)
    TQ2_0 = ("tq2_0", 256, 66, False)

    def __init__(
        self, label: str, block_elements: int, block_bytes: int, has_kernels: bool = True
    ) -> None:
        self.label = label
        self.block_elements = block_elements
        self.block_bytes = block_bytes
        self.has_kernels = has_kernels

    @property
    def is_quantized(self) -> bool:
        """Whether values share scales, so that products are exact integer sums."""
        return self.block_elements > 1

    @property
    def loaded_as(self) -> TensorFormat:
        """The format to which weights stored in this one are loaded.

        It is Q8_0 for a format without kernels, whose error is at most 1/254 of the largest of 32
        values.
        """
        return self if self.has_kernels else TensorFormat.Q8_0

    def row_bytes(self, num_columns: int) -> int:
        """Return the bytes of one stored row.

        ``num_columns`` must be a multiple of ``block_elements``.
        """
        num_blocks, rest = divmod(num_columns, self.block_elements)
        if rest:
            raise ValueError(
                f"{num_columns} columns are not a multiple of the {self.label} block size"
            )
        return num_blocks * self.block_bytes


COMPUTED_FORMATS = tuple(each for each in TensorFormat if each.has_kernels)
"""The formats for which the native engine has kernels, in the order of the core's ``Format``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor's format and its row-major ``shape``, ``(rows, columns)`` or ``(n,)``.

    All dimensions except the last count as rows; a scalar, ``()``, is one row of one element.
    """

    name: str
    shape: tuple[int, ...]
    format: TensorFormat

    @property
    def num_rows(self) -> int:
        """The number of rows; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        """The number of elements of one row."""
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """The stored bytes of one row."""
        return self.format.row_bytes(self.num_columns)

    @property
    def num_bytes(self) -> int:
        """The stored bytes of the whole tensor."""
        return self.num_rows * self.row_bytes


class TensorSource(Protocol):
    """Named tensors that can be read in pieces. Implementations need not be thread-safe."""

    def names(self) -> Iterable[str]:
        """Return all tensor names, in file order."""
        ...

    def info(self, name: str) -> TensorInfo:
        """Return the tensor stored under ``name``. Raise ``KeyError`` if there is none."""
        ...

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of rows ``[start_row, end_row)`` into ``out``, which has this size.

        Rows are in canonical order (the source undoes GGUF's permutation of q and k). Raise
        ``ModelFileError`` if the file is shorter than its header says or cannot be read.
        """
        ...

    def close(self) -> None:
        """Release files and mappings. Idempotent."""
        ...


class TensorSink(Protocol):
    """An engine's interface for weights, which come tensor by tensor, with rows in ascending
    order.
    """

    def begin(self, info: TensorInfo) -> None:
        """Allocate memory for the tensor."""
        ...

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Accept the stored bytes of rows ``[start_row, end_row)``; ``data`` is not kept."""
        ...

    def finish(self, name: str) -> None:
        """Complete the tensor after all rows of ``name`` were written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedHeads:
    """Heads in which ``rotary_dim`` rows are stored with their two halves interleaved.

    The file's row ``h·d + t + 2j + s`` is the canonical row ``h·d + t + s·r/2 + j``, where ``d`` is
    ``head_dim``, ``t`` is ``start`` and ``r`` is ``rotary_dim``; the other rows of a head are not
    permuted. For a vector (a bias), this applies to its elements.
    """

    num_heads: int
    head_dim: int
    rotary_dim: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """The ``num_rows`` rows ``start + stride·i`` of a matrix, or elements of a vector.

    With ``of_vectors``, a tensor of two dimensions is one vector per expert.
    """

    start: int
    num_rows: int
    stride: int = 1
    of_vectors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """The location and form in which a file stores a canonical tensor.

    The tensor is stored under one name, or with ``is_stacked``, each matrix of a stack ``[experts,
    rows, columns]`` is stored under its own name, in order.

    - ``interleaved``: the rows of q and k are in another order, as in GGUF files of the ``llama``
      architecture.
    - ``num_matrices``: the file's matrix is a stack of this many matrices, one below the other;
      None if the shape already shows it.
    - ``row_range``: the tensor is only these rows of the file's tensor, in canonical order; for a
      stack, these rows of each matrix.
    - ``rows``: the tensor consists of these runs of rows of the file's tensor, concatenated; None
      means all rows. It excludes the other fields.
    - ``plus_one``: 1 is added to the stored values, which makes the tensor float32.
    - ``is_negative_exp``: the tensor is ``-exp(w)`` of the stored values, in float32.
    - ``is_transposed``: if stored as floats, the file has the transpose of each matrix; the other
      fields refer to the matrix after transposition.
    - ``is_part_transposed``: the canonical matrices are the transposes of those that ``row_range``
      selects, in float32 if they are stored in blocks.
    - ``is_flat``: the tensor is a vector of all elements of the file's tensor (the kernels
      ``[channels, 1, k]`` of a convolution).

    ``shape`` is the canonical shape; None means the shape in the file. A shape in the file that
    differs from it only in dimensions of 1 is accepted.
    """

    canonical_name: str
    stored_names: tuple[str, ...]
    is_stacked: bool = False
    interleaved: InterleavedHeads | None = None
    num_matrices: int | None = None
    row_range: RowRange | None = None
    rows: tuple[range, ...] | None = None
    plus_one: bool = False
    is_negative_exp: bool = False
    is_transposed: bool = False
    is_part_transposed: bool = False
    is_flat: bool = False
    shape: tuple[int, ...] | None = None
