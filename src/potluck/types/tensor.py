"""How tensors are stored, named and handed over.

A weight is a matrix ``[rows, columns]`` (or a vector) whose rows are stored one after another. A
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

    This is the one table of formats. The C++ core has those with kernels, in the same order; tests
    check that every other table agrees with it. A format without kernels can be read, and becomes
    another one when it is loaded (``loaded_as``).
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
        """The format that weights stored in this one have once they are loaded.

        Q8_0 for a format without kernels: its error is at most 1/254 of the largest of 32 values.
        """
        return self if self.has_kernels else TensorFormat.Q8_0

    def row_bytes(self, num_columns: int) -> int:
        """Bytes of one stored row. ``num_columns`` must be a multiple of ``block_elements``."""
        num_blocks, rest = divmod(num_columns, self.block_elements)
        if rest:
            raise ValueError(f"{num_columns} columns are not whole {self.label} blocks")
        return num_blocks * self.block_bytes


COMPUTED_FORMATS = tuple(each for each in TensorFormat if each.has_kernels)
"""The formats that the native engine computes with, in the order of the C++ core's ``Format``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """What a file says about one tensor; ``shape`` is row-major, ``(rows, columns)`` or ``(n,)``.

    More dimensions count as rows of the last one; a scalar, ``()``, is one row of one element.
    """

    name: str
    shape: tuple[int, ...]
    format: TensorFormat

    @property
    def num_rows(self) -> int:
        """Rows of a matrix; a vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def num_columns(self) -> int:
        """Elements of one row."""
        return self.shape[-1] if self.shape else 1

    @property
    def row_bytes(self) -> int:
        """Stored bytes of one row."""
        return self.format.row_bytes(self.num_columns)

    @property
    def num_bytes(self) -> int:
        """Stored bytes of the whole tensor."""
        return self.num_rows * self.row_bytes


class TensorSource(Protocol):
    """Named tensors that can be read in pieces. Implementations are safe for use by one thread."""

    def names(self) -> Iterable[str]:
        """All tensor names, in file order."""
        ...

    def info(self, name: str) -> TensorInfo:
        """What is stored under ``name``; raises ``KeyError`` if nothing is."""
        ...

    def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
        """Copy the stored bytes of rows ``[start_row, end_row)`` into ``out`` (exactly as long).

        Rows come in canonical order (GGUF's permuted q/k is undone by the source). Raises
        ``ModelFileError`` when the file is shorter than its header says or cannot be read.
        """
        ...

    def close(self) -> None:
        """Release files and mappings. Idempotent."""
        ...


class TensorSink(Protocol):
    """Where an engine takes weights: tensor by tensor, rows in ascending order."""

    def begin(self, info: TensorInfo) -> None:
        """Make room for the tensor."""
        ...

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        """Take the stored bytes of rows ``[start_row, end_row)``; ``data`` is not kept."""
        ...

    def finish(self, name: str) -> None:
        """All rows of ``name`` were written."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavedHeads:
    """Heads of which ``rotary_dim`` rows are stored with their two halves interleaved.

    The file's row ``h·d + t + 2j + s`` is canonical row ``h·d + t + s·r/2 + j``, where ``d`` is
    ``head_dim``, ``t`` is ``start`` and ``r`` is ``rotary_dim``; a head's other rows are in their
    places. Of a vector (a bias) its elements are meant.
    """

    num_heads: int
    head_dim: int
    rotary_dim: int
    start: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows ``start + stride·i`` of a matrix, ``num_rows`` of them; of a vector its elements.

    ``of_vectors``: a tensor of two dimensions is a vector for each expert.
    """

    start: int
    num_rows: int
    stride: int = 1
    of_vectors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Where a file keeps a canonical tensor.

    That is under one name, or with ``is_stacked`` each matrix of a stack ``[experts, rows,
    columns]`` under a name of its own, in their order.

    ``interleaved``: rows of q and k in another order, as GGUF files of the ``llama`` architecture
    have them. ``num_matrices``: the file's matrix is a stack of so many, one below another; None
    for no more than its shape says. ``row_range``: it is only these rows of the file's tensor in
    canonical order, of a stack these of each matrix. ``rows``: it consists of these runs of rows of
    the file's tensor, one after another; None is all of them, and it is given alone. ``plus_one``:
    1 is added to what is stored, which makes it float32. ``is_negative_exp``: it is ``-exp(w)`` of
    what is stored, in float32.
    ``is_transposed``: where it is stored as floats, the file has the transpose of each matrix, of
    which the others of these fields are meant. ``is_part_transposed``: the canonical matrices are
    the transposes of those that ``row_range`` takes, in float32 if they are stored in blocks.
    ``is_flat``: it is a vector, of the elements of the file's tensor one after another (the kernels
    ``[channels, 1, k]`` of a convolution).

    ``shape`` is the canonical one; None is whatever the file has. A file's that differs from it in
    dimensions of 1 only is taken for it.
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
