"""Converting rows: every source and target, any threads, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import pytest
from support.kernels.convert_checks import TARGET_FORMATS, encode
from support.kernels.inputs import (
    F32,
    FLOAT_FORMATS,
    FORMATS,
    U8,
    guarded,
    guarded_output,
    make_weights,
    same_bits,
)

from potluck.kernels import convert_rows, kernels_for
from potluck.kernels.runner import Error, ThreadPool
from potluck.types.tensor import TensorFormat

all_targets = pytest.mark.parametrize("target", TARGET_FORMATS, ids=lambda format: format.label)
all_sources = pytest.mark.parametrize("source", FORMATS, ids=lambda format: format.label)
float_sources = pytest.mark.parametrize("source", FLOAT_FORMATS, ids=lambda format: format.label)

F32_FORMAT, BF16, Q8_0 = TensorFormat.F32, TensorFormat.BF16, TensorFormat.Q8_0
WIDE = 2 * 2048 + 256
"""Columns of more than two pieces, as the core cuts rows."""


def stored_bytes(x: F32, format: TensorFormat) -> U8:
    """Rows of a float format, ``[rows, row bytes]``."""
    if format is TensorFormat.F16:
        return x.astype(np.float16).view(np.uint8)
    if format is TensorFormat.BF16:
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return x.view(np.uint8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Stored rows, and how they are converted."""

    stored: U8
    source: TensorFormat
    num_columns: int

    def to(self, target: TensorFormat, pool: ThreadPool | None = None) -> U8:
        num_rows = len(self.stored)
        out = guarded_output(num_rows, target.row_bytes(self.num_columns), dtype=np.uint8)
        convert_rows(
            guarded(self.stored).reshape(-1),
            self.source.label,
            target.label,
            num_rows,
            self.num_columns,
            out.array.reshape(-1),
            pool,
        )
        out.assert_intact()
        return out.array


def expected_rows(values: F32, target: TensorFormat) -> U8:
    if target.block_elements == 32 and target is not TensorFormat.IQ4_NL:  # gguf cannot make it
        made: U8 = gguf.quantize(values, gguf.GGMLQuantizationType[target.name])
        return made
    return np.stack([encode(kernels_for("scalar"), target, row)[0] for row in values])


@all_sources
@all_targets
@pytest.mark.parametrize("num_columns", [256, WIDE])
def test_every_source_and_target(
    source: TensorFormat, target: TensorFormat, num_columns: int
) -> None:
    weights = make_weights(source, 5, num_columns, np.random.default_rng(1))
    rows = Rows(stored=weights.stored, source=source, num_columns=num_columns)
    if source is target:
        assert same_bits(rows.to(target), weights.stored)
    else:
        assert same_bits(rows.to(target), expected_rows(weights.values, target))


@all_sources
def test_to_float32_nothing_is_lost(source: TensorFormat) -> None:
    weights = make_weights(source, 5, WIDE, np.random.default_rng(1))
    rows = Rows(stored=weights.stored, source=source, num_columns=WIDE)
    assert same_bits(rows.to(F32_FORMAT), weights.values.view(np.uint8))
    assert same_bits(rows.to(F32_FORMAT, ThreadPool(2)), weights.values.view(np.uint8))


@all_targets
@pytest.mark.parametrize("num_columns", [256, WIDE])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 7, 61])
def test_threads_change_nothing(target: TensorFormat, num_rows: int, num_columns: int) -> None:
    weights = make_weights(BF16, num_rows, num_columns, np.random.default_rng(2))
    rows = Rows(stored=weights.stored, source=BF16, num_columns=num_columns)
    alone = rows.to(target)
    for num_threads in (1, 2, 5):
        assert same_bits(rows.to(target, ThreadPool(num_threads)), alone)


def test_blocks_of_rows_make_up_the_whole() -> None:
    weights = make_weights(BF16, 9, 512, np.random.default_rng(3))
    whole = Rows(stored=weights.stored, source=BF16, num_columns=512).to(TensorFormat.Q4_K)
    for start, end in ((0, 1), (1, 6), (6, 9)):
        part = Rows(stored=weights.stored[start:end], source=BF16, num_columns=512)
        assert same_bits(part.to(TensorFormat.Q4_K), np.ascontiguousarray(whole[start:end]))


def test_memoryviews_are_taken() -> None:
    x = np.ones((1, 32), np.float32)
    out = bytearray(34)
    convert_rows(memoryview(x.tobytes()), "f32", "q8_0", 1, 32, memoryview(out), None)
    assert bytes(out) == gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0).tobytes()
    with pytest.raises(TypeError):
        convert_rows(memoryview(x.tobytes()), "f32", "q8_0", 1, 32, memoryview(bytes(34)), None)


@all_targets
@float_sources
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_refused(
    source: TensorFormat, target: TensorFormat, value: float
) -> None:
    x = np.random.default_rng(4).standard_normal((40, WIDE)).astype(np.float32)
    for first, column in ((0, 0), (17, 2047), (39, WIDE - 1)):
        spoilt = x.copy()
        spoilt[first, column] = spoilt[39, 5] = value
        rows = Rows(stored=stored_bytes(spoilt, source), source=source, num_columns=WIDE)
        for pool in (None, ThreadPool(2)):
            with pytest.raises(Error, match=f"^row {first} has a value that is not finite$"):
                rows.to(target, pool)


def test_a_scale_that_is_not_finite_is_refused() -> None:
    weights = make_weights(TensorFormat.Q5_K, 3, 256, np.random.default_rng(5))
    stored = weights.stored.copy()
    stored[1, 2:4] = np.array([np.inf], np.float16).view(np.uint8)
    rows = Rows(stored=stored, source=TensorFormat.Q5_K, num_columns=256)
    with pytest.raises(Error, match="row 1 has a value that is not finite"):
        rows.to(TensorFormat.Q4_K)


LARGEST = {
    # Where the scale of a block rounds to infinity: 65520 times what it is divided by.
    TensorFormat.Q8_0: 65520 * 127,
    TensorFormat.Q4_0: 65520 * 8,
    TensorFormat.Q5_0: 65520 * 16,
    TensorFormat.Q4_K: 65520 * 15 * 63,
    TensorFormat.Q6_K: 65520 * 32 * 112,
    TensorFormat.Q3_K: 4 * 31 * 65504,
    TensorFormat.IQ4_NL: 127 * 65504,
}


@all_targets
def test_what_is_too_large_is_refused(target: TensorFormat) -> None:
    x = np.random.default_rng(6).standard_normal((3, 512)).astype(np.float32)
    x[2, 300] = LARGEST[target] * 0.9
    Rows(stored=x.view(np.uint8), source=F32_FORMAT, num_columns=512).to(target)
    x[2, 300] = LARGEST[target] * 1.2
    rows = Rows(stored=x.view(np.uint8), source=F32_FORMAT, num_columns=512)
    with pytest.raises(Error, match=f"^row 2 has a value that is too large for {target.label}$"):
        rows.to(target)


@pytest.mark.parametrize(
    ("source", "target", "num_rows", "num_columns", "source_bytes", "out_bytes", "message"),
    [
        ("f32", "q8_0", 2, 32, 255, 68, "source has 255 bytes"),
        ("f32", "q8_0", 2, 32, 256, 67, "out has 67 bytes"),
        ("f32", "q8_0", 1, 33, 132, 34, "33 columns are not whole blocks of q8_0"),
        ("f32", "q4_k", 1, 32, 128, 144, "32 columns are not whole blocks of q4_k"),
        ("q6_k", "q8_0", 1, 32, 210, 34, "32 columns are not whole blocks of q6_k"),
        ("f32", "q8_0", 1, 0, 0, 0, "no 1 rows of 0 columns"),
        ("f32", "q8_0", -1, 32, 0, 0, "no -1 rows"),
        ("f32", "q8_0", 1, -32, 0, 0, "no 1 rows of -32 columns"),
        ("f32", "f16", 1, 32, 128, 64, "cannot be converted to f16"),
        ("f32", "q5_k", 1, 256, 1024, 176, "cannot be converted to q5_k"),
        ("f32", "q9_k", 1, 32, 128, 34, "no format 'q9_k'"),
        ("i8", "q8_0", 1, 32, 32, 34, "no format 'i8'"),
        ("f32", "q8_0", 2**61, 32, 0, 0, "source has 0 bytes"),
        ("f32", "q8_0", 2, 2**62, 0, 0, "source has 0 bytes"),
    ],
)
def test_what_does_not_fit_is_refused(
    source: str,
    target: str,
    num_rows: int,
    num_columns: int,
    source_bytes: int,
    out_bytes: int,
    message: str,
) -> None:
    stored, out = np.zeros(source_bytes, np.uint8), np.zeros(out_bytes, np.uint8)
    with pytest.raises(Error, match=message):
        convert_rows(stored, source, target, num_rows, num_columns, out, None)


def test_overlapping_buffers_are_refused() -> None:
    both = np.zeros(4 * 34, np.uint8)
    with pytest.raises(Error, match="overlap"):
        convert_rows(both[:128], "f32", "q8_0", 1, 32, both[100:134], None)
    with pytest.raises(Error, match="overlap"):
        convert_rows(both[8:], "f32", "q8_0", 1, 32, both[:34], None)
