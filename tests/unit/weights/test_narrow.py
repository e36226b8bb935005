"""Weights for a backend that has float16 and no bfloat16."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray
from support.programs import program_reading
from support.tensor_sources import MemorySource, read_in_pieces, read_whole

from potluck.errors import ModelFileError
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.weights import narrow
from potluck.weights.load import load_weights
from potluck.weights.narrow import NarrowedSource, f16_exponent

BF16, F32, F16 = TensorFormat.BF16, TensorFormat.F32, TensorFormat.F16


def bf16(values: list[list[float]]) -> bytes:
    """Numbers that bfloat16 has, as a file stores them."""
    bits = np.array(values, np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16).astype(np.uint16).tobytes()


def source_of(**tensors: tuple[TensorFormat, tuple[int, ...], bytes]) -> MemorySource:
    return MemorySource(
        {
            name: (TensorInfo(name=name, shape=shape, format=format), data)
            for name, (format, shape, data) in tensors.items()
        }
    )


@pytest.mark.parametrize(
    ("format", "largest", "smallest", "exponent"),
    [
        (BF16, 0.0, 0.0, 0),
        (BF16, 1.0, 2.0**-17, 0),
        (BF16, 1.0, 2.0**-18, 1),
        (BF16, 1.0, 1.5 * 2.0**-18, 1),
        (BF16, 65280.0, 1.0, 0),
        (BF16, 65536.0, 1.0, -1),
        (BF16, 2.0**127, 2.0**100, -112),
        (BF16, 2.0**-133, 2.0**-133, 116),  # bfloat16's smallest
        (BF16, 65280.0, 2.0**-17, 0),
        (BF16, 65280.0, 2.0**-18, None),
        (BF16, 65536.0, 2.0**-16, -1),
        (BF16, 65536.0, 2.0**-17, None),
        (F32, 65504.0, 2.0**-14, 0),
        (F32, 65505.0, 1.0, -1),  # would still be rounded to 65504, by more than half a last bit
        (F32, 1.0, 2.0**-15, 1),
        (F32, 65504.0, 2.0**-15, None),
        (F32, 65505.0, 2.0**-14, None),
    ],
)
def test_the_exponent_nearest_to_zero(
    format: TensorFormat, largest: float, smallest: float, exponent: int | None
) -> None:
    assert f16_exponent(format, largest, smallest) == exponent


class F16OnlySink:
    """A ``TensorSink`` of a backend without bfloat16 arithmetic.

    Matrices are held as float16 with an exponent, or as the bits of bfloat16 or float32, which
    its kernels widen.
    """

    def __init__(self, source: NarrowedSource) -> None:
        self._source = source
        self._info: dict[str, TensorInfo] = {}
        self.held: dict[str, bytearray] = {}
        self.num_finished = 0

    def begin(self, info: TensorInfo) -> None:
        self._info[info.name] = info
        self.held[info.name] = bytearray(info.num_bytes)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        size = self._info[name].row_bytes
        self.held[name][start_row * size : end_row * size] = data

    def finish(self, name: str) -> None:
        self.num_finished += 1

    def format(self, name: str) -> TensorFormat:
        return self._info[name].format

    def values(self, name: str) -> NDArray[np.float64]:
        """What the backend computes with."""
        info, data = self._info[name], bytes(self.held[name])
        if info.format is F16:
            exact = np.frombuffer(data, np.float16).astype(np.float64)
            return exact * 2.0 ** -self._source.exponent(name)
        if info.format is BF16:
            wide = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
            return wide.view(np.float32).astype(np.float64)
        return np.frombuffer(data, np.float32).astype(np.float64)


def test_what_a_backend_with_only_float16_computes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrow, "STAGING_BYTES", 8)  # a block is one row
    rounded = np.array([[1 / 3, 1.0], [0.1, -1e-6]], np.float32)
    stored = {
        "plain": [[1.0, -0.5], [0.0, 2.0**-17]],
        "small": [[2.0**-30, -(2.0**-4)], [0.0, 1.9921875 * 2.0**-29]],
        "large": [[2.0**17, -1.0], [1.9921875 * 2.0**16, 4.0]],
        "wide": [[2.0**20, 2.0**-20], [0.0, 1.0]],
        "all_zero": [[0.0, -0.0], [0.0, 0.0]],
    }
    raw = source_of(
        **{name: (BF16, (2, 2), bf16(values)) for name, values in stored.items()},
        rounded=(F32, (2, 2), rounded.tobytes()),
        vector=(BF16, (2,), bf16([[2.0**100, 2.0**-100]])),
        f16=(F16, (1, 2), np.array([1, 2.0**-24], np.float16).tobytes()),
    )
    source = NarrowedSource(raw, None)
    sink = F16OnlySink(source)
    program = program_reading({name: raw.info(name).shape for name in raw.names()})
    report = load_weights(program, source, sink)

    assert sink.num_finished == len(raw.tensors)
    for name, values in stored.items():
        assert sink.values(name).tolist() == [x for row in values for x in row], name
    formats = {name: sink.format(name) for name in sink.held}
    assert formats == dict.fromkeys(sink.held, F16) | {"wide": BF16, "vector": BF16}
    assert {name: source.exponent(name) for name in sink.held if source.exponent(name)} == {
        "small": 13,
        "large": -2,
        "rounded": 6,
    }
    assert np.array_equal(sink.values("f16"), [1, 2.0**-24])
    relative = np.abs(sink.values("rounded") / rounded.reshape(-1).astype(np.float64) - 1)
    assert 0 < relative.max() <= 2.0**-11

    remarks = {remark.name: remark for remark in source.remarks()}
    assert {name: remark.remark for name, remark in remarks.items()} == {
        "small": "held as float16 times 2^13",
        "large": "held as float16 times 2^-2",
        "wide": "kept as bf16: its values span more than float16's range",
        "rounded": "held as float16 times 2^6",
    }
    assert remarks["rounded"].relative_error == pytest.approx(relative.max(), rel=1e-3)
    assert [remarks[name].relative_error for name in ("small", "large", "wide")] == [0, 0, 0]
    lines = list(dataclasses.replace(report, remarks=source.remarks()).remark_lines())
    assert (
        "wide: kept as bf16: its values span more than float16's range (relative error at most 0)"
        in lines
    )


def test_every_bfloat16_that_fits_is_exact() -> None:
    """All of both signs from 2^-17 to float16's largest, and those 2^20 times smaller."""
    bits = np.arange(0x3700, 0x477F + 1, dtype=np.uint16)
    all_bits = np.concatenate([bits, bits | 0x8000]).reshape(2, -1)
    wide = (all_bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    assert (np.abs(wide).min(), np.abs(wide).max()) == (2.0**-17, 65280.0)
    smaller = (all_bits - (20 << 7)).astype(np.uint16)
    shape = all_bits.shape
    source = NarrowedSource(
        source_of(
            as_it_is=(BF16, shape, all_bits.tobytes()), smaller=(BF16, shape, smaller.tobytes())
        ),
        None,
    )
    for name, exponent in (("as_it_is", 0), ("smaller", 20)):
        assert (source.info(name).format, source.exponent(name)) == (F16, exponent)
        held = np.frombuffer(read_whole(source, name), np.float16).astype(np.float64)
        assert np.array_equal(held.reshape(shape), wide)
    assert [remark.name for remark in source.remarks()] == ["smaller"]


def test_pieces_and_blocks_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(3).standard_normal((37, 24)).astype(np.float32)
    raw = source_of(w=(F32, x.shape, x.tobytes()))
    whole = read_whole(NarrowedSource(raw, None), "w")
    monkeypatch.setattr(narrow, "STAGING_BYTES", 5 * 24 * 4)
    source = NarrowedSource(raw, None)
    assert read_in_pieces(source, "w", 7) == whole
    exact = np.frombuffer(whole, np.float16).reshape(x.shape).astype(np.float64)
    relative = np.abs(np.ldexp(exact, -source.exponent("w")) / x.astype(np.float64) - 1)
    assert relative.max() <= 2.0**-11


def test_a_value_that_is_not_finite_is_refused_and_named() -> None:
    data = bf16([[1.0, 2.0], [1.0, 2.0]])[:-2] + b"\x80\x7f"  # infinity
    source = NarrowedSource(source_of(w=(BF16, (2, 2), data)), None, path="m.gguf")
    with pytest.raises(ModelFileError, match=r"m\.gguf: w, .*row 1 has a value that is not finite"):
        source.info("w")


def test_closing_closes_the_source_below() -> None:
    raw = source_of()
    NarrowedSource(raw, None).close()
    assert raw.is_closed
