"""Weights that the native engine computes with where they lie: the same bits as loaded ones."""

from __future__ import annotations

import gc
import mmap
import weakref
import zlib
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.engines.native_pipeline import Part, Pipeline, cut, make_program, small_config
from support.engines.pools import pool_of
from support.models.random_weights import stored_rows

from potluck.engines.native.engine import NativeEngine, loaded_bytes
from potluck.engines.native.packing import PackingSink, packed_info, packing_bytes
from potluck.errors import EngineError
from potluck.formats.packed import packed_layout
from potluck.kernels import pack_rows, panel_bytes
from potluck.types.program import Program
from potluck.types.tensor import COMPUTED_FORMATS, TensorFormat, TensorInfo, TensorSink

CONFIG = small_config(3)
FLOATS = (TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16)


class Packed:
    """Takes weights as an engine does, through a ``PackingSink``, and has them in memory."""

    def __init__(self, num_threads: int) -> None:
        self.weights: dict[str, tuple[TensorInfo, bytearray]] = {}
        self._sink = PackingSink(pool_of(num_threads), self._write)

    def sink(self) -> TensorSink:
        return self

    def begin(self, info: TensorInfo) -> None:
        self.weights[info.name] = (packed_info(info), bytearray())
        self._sink.begin(info)

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        for row in range(start_row, end_row, 7):  # rows of a panel come in pieces
            end = min(row + 7, end_row)
            size = len(data) // (end_row - start_row)
            piece = data[(row - start_row) * size : (end - start_row) * size]
            self._sink.write_rows(name, row, end, piece)

    def finish(self, name: str) -> None:
        self._sink.finish(name)

    def _write(self, name: str, offset: int, data: memoryview) -> None:
        stored = self.weights[name][1]
        assert offset == len(stored), "in ascending order, without gaps"
        stored += data


def aligned(data: bytes | bytearray) -> NDArray[np.uint8]:
    """A copy at a multiple of 64."""
    room = np.empty(len(data) + 64, dtype=np.uint8)
    begin = -room.ctypes.data % 64
    copy = room[begin : begin + len(data)]
    copy[:] = np.frombuffer(data, dtype=np.uint8)
    return copy


def stored_as(format: TensorFormat, program: Program, sink: TensorSink) -> None:
    """Random weights, vectors in ``format`` too where they can be."""
    vectors = format if format in FLOATS else TensorFormat.F32
    for spec in program.weights:
        rng = np.random.default_rng(zlib.crc32(spec.name.encode()))
        is_matrix = len(spec.shape) > 1
        info = TensorInfo(name=spec.name, shape=spec.shape, format=format if is_matrix else vectors)
        rows = stored_rows(rng, info.format, info.num_rows, info.num_columns)
        sink.begin(info)
        sink.write_rows(info.name, 0, info.num_rows, rows.reshape(-1).data)
        sink.finish(info.name)


def new_engine(program: Program, num_threads: int = 1) -> NativeEngine:
    return NativeEngine(program, num_blocks=100, max_step_tokens=600, pool=pool_of(num_threads))


@pytest.mark.slow
@pytest.mark.parametrize("format", COMPUTED_FORMATS, ids=lambda each: each.label)
def test_mapped_weights_give_the_same_bits(format: TensorFormat) -> None:
    (shard,) = cut(CONFIG.num_layers, 1)
    program = make_program(CONFIG, shard)
    loaded, mapped, packed = new_engine(program), new_engine(program), Packed(num_threads=2)
    stored_as(format, program, loaded.sink())
    stored_as(format, program, packed)
    for info, data in packed.weights.values():
        assert len(data) == loaded_bytes(info)
        mapped.map_weight(info, aligned(data))
    assert mapped.weights_bytes == 0
    assert mapped.mapped_bytes == loaded.weights_bytes
    part = Part(sequence=0, tokens=range(5, 45), start=0)
    expected, found = (
        Pipeline(engines=[engine], free_blocks=list(range(100))).logits([part])
        for engine in (loaded, mapped)
    )
    assert np.isfinite(expected).all()
    assert found.tobytes() == expected.tobytes()


def test_packing_holds_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some panels at a time, however large the matrix is."""
    monkeypatch.setattr("potluck.engines.native.packing.BUFFER_BYTES", 40_000)
    info = TensorInfo(name="m", shape=(1000, 256), format=TensorFormat.F32)
    sizes: list[int] = []
    sink = PackingSink(pool_of(1), lambda name, offset, data: sizes.append(len(data)))
    rows = stored_rows(np.random.default_rng(0), info.format, 1000, 256)
    sink.begin(info)
    sink.write_rows("m", 0, 1000, rows.reshape(-1).data)
    sink.finish("m")
    assert packing_bytes([info]) == max(sizes) == 2 * 16 * 256 * 4
    assert sum(sizes) == loaded_bytes(info) == 63 * 16 * 256 * 4
    vector = TensorInfo(name="v", shape=(10**6,), format=TensorFormat.F32)
    assert packing_bytes([vector]) == 0


def small_program() -> tuple[Program, dict[str, TensorInfo]]:
    program = make_program(CONFIG, cut(CONFIG.num_layers, 1)[0])
    return program, {
        spec.name: TensorInfo(name=spec.name, shape=spec.shape, format=TensorFormat.F32)
        for spec in program.weights
    }


def test_what_cannot_be_the_weight_is_refused() -> None:
    program, infos = small_program()
    engine = new_engine(program)
    matrix = next(info for info in infos.values() if len(info.shape) > 1)
    vector = next(info for info in infos.values() if len(info.shape) == 1)
    data = aligned(bytes(loaded_bytes(matrix)))
    with pytest.raises(EngineError, match="bytes instead of"):
        engine.map_weight(matrix, data[:-64])
    with pytest.raises(EngineError, match="not aligned"):
        engine.map_weight(matrix, aligned(bytes(len(data) + 4))[4:])
    as_f16 = TensorInfo(name=vector.name, shape=vector.shape, format=TensorFormat.F16)
    with pytest.raises(EngineError, match="must be f32"):
        engine.map_weight(as_f16, aligned(bytes(loaded_bytes(vector))))
    unknown = TensorInfo(name="unknown", shape=matrix.shape, format=matrix.format)
    with pytest.raises(EngineError, match="no weight 'unknown'"):
        engine.map_weight(unknown, data)
    engine.map_weight(matrix, data)
    with pytest.raises(EngineError, match="begun before"):
        engine.map_weight(matrix, data)


def test_the_bytes_live_as_long_as_the_engine() -> None:
    program, infos = small_program()
    engine = new_engine(program)
    info = next(iter(infos.values()))
    data = aligned(bytes(loaded_bytes(info)))
    alive = weakref.ref(data)
    engine.map_weight(info, data)
    del data
    gc.collect()
    assert alive() is not None
    engine.close()
    gc.collect()
    assert alive() is None


def test_an_engine_ends_while_it_reads_ahead(tmp_path: Path) -> None:
    """Its thread neither outlives it nor keeps it waiting, also after steps that read nothing."""
    (shard,) = cut(CONFIG.num_layers, 1)
    program = make_program(CONFIG, shard)
    packed = Packed(num_threads=1)
    stored_as(TensorFormat.BF16, program, packed)
    layout = packed_layout(
        [(info, len(data)) for info, data in packed.weights.values()], key="", panel_layout=1
    )
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.truncate(layout.num_bytes)
        for tensor in layout.tensors:
            file.seek(tensor.offset)
            file.write(packed.weights[tensor.info.name][1])
    reference = new_engine(program)
    stored_as(TensorFormat.BF16, program, reference.sink())
    part = Part(sequence=0, tokens=range(5, 45), start=0)
    expected = Pipeline(engines=[reference], free_blocks=list(range(100))).logits([part])
    for num_steps in (1, 1, 3):
        engine = new_engine(program, num_threads=2)
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        for tensor in layout.tensors:
            engine.map_weight(
                tensor.info,
                np.frombuffer(mapped, np.uint8, tensor.num_bytes, tensor.offset),
            )
        for _ in range(num_steps):
            found = Pipeline(engines=[engine], free_blocks=list(range(100))).logits([part])
            assert found.tobytes() == expected.tobytes()
        engine.close()
        mapped.close()  # nothing refers to it any more


@pytest.mark.parametrize("format", [TensorFormat.Q4_K, TensorFormat.Q5_0], ids=["q4_k", "q5_0"])
def test_panels_are_the_same_however_they_come(
    format: TensorFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two panels at a time, of rows in pieces of seven, as all panels at once."""
    num_rows, num_columns = 90, 256
    size = panel_bytes(format.label, num_columns)
    monkeypatch.setattr("potluck.engines.native.packing.BUFFER_BYTES", 2 * size)
    stored = stored_rows(np.random.default_rng(0), format, num_rows, num_columns).reshape(-1)
    expected = np.zeros(6 * size, dtype=np.uint8)
    pack_rows(format.label, num_columns, stored, 0, num_rows, expected)
    packed = Packed(num_threads=2)
    packed.begin(TensorInfo(name="m", shape=(num_rows, num_columns), format=format))
    packed.write_rows("m", 0, num_rows, stored.data)
    packed.finish("m")
    assert packed.weights["m"][1] == expected.tobytes()
