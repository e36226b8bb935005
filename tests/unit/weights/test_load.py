from __future__ import annotations

import threading
import time
import tracemalloc

import pytest
from support.engines.programs import program_reading
from support.models.tensor_sources import MemorySource

from potluck.errors import EngineError, ModelFileError, UnsupportedModelError
from potluck.types.choices import Quantization
from potluck.types.tensor import TensorFormat, TensorInfo
from potluck.weights import load
from potluck.weights.load import (
    BUFFER_BYTES,
    STAGING_BYTES,
    check_weights,
    format_remarks,
    load_weights,
    loaded_weights,
    remark_lines,
)


def pattern(num_bytes: int) -> bytes:
    return bytes((7 * index + index // 251) % 256 for index in range(num_bytes))


def source_of(**tensors: tuple[tuple[int, ...], TensorFormat]) -> MemorySource:
    stored = {}
    for name, (shape, format) in tensors.items():
        info = TensorInfo(name=name, shape=shape, format=format)
        stored[name] = (info, pattern(info.num_bytes))
    return MemorySource(stored)


class RecordingSink:
    """A ``TensorSink`` that insists on its protocol. ``fail_after`` writes it raises."""

    def __init__(self, fail_after: int | None = None) -> None:
        self.finished: dict[str, bytes] = {}
        self.infos: dict[str, TensorInfo] = {}
        self.open_info: TensorInfo | None = None
        self.data = bytearray()
        self.num_writes = 0
        self.largest_write_bytes = 0
        self.fail_after = fail_after

    def begin(self, info: TensorInfo) -> None:
        assert self.open_info is None
        assert info.name not in self.finished
        self.open_info = self.infos[info.name] = info
        self.data = bytearray()

    def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
        if self.num_writes == self.fail_after:
            raise MemoryError("sink")
        assert self.open_info is not None
        assert self.open_info.name == name
        assert len(self.data) == start_row * self.open_info.row_bytes
        assert len(data) == (end_row - start_row) * self.open_info.row_bytes > 0
        self.num_writes += 1
        self.largest_write_bytes = max(self.largest_write_bytes, len(data))
        self.data += data

    def finish(self, name: str) -> None:
        assert self.open_info is not None
        assert len(self.data) == self.open_info.num_bytes
        self.finished[name] = bytes(self.data)
        self.open_info = None


def test_every_weight_of_the_program_arrives_once_and_no_other() -> None:
    source = source_of(
        a=((3, 64), TensorFormat.Q8_0),
        norm=((5,), TensorFormat.F32),
        unused=((2, 2), TensorFormat.F32),
        b=((4, 3), TensorFormat.BF16),
    )
    sink = RecordingSink()
    load_weights(program_reading({"b": (4, 3), "norm": (5,), "a": (3, 64)}), source, sink)
    assert list(sink.finished) == ["b", "norm", "a"]
    for name, data in sink.finished.items():
        assert data == source.tensors[name][1]
    assert sink.open_info is None
    assert not source.is_closed


@pytest.mark.parametrize("buffer", [1, 12, 13, 30, 1000])
def test_the_buffer_bounds_what_passes_at_once(
    monkeypatch: pytest.MonkeyPatch, buffer: int
) -> None:
    monkeypatch.setattr(load, "BUFFER_BYTES", buffer)
    source = source_of(a=((7, 3), TensorFormat.F32), v=((9,), TensorFormat.F32))
    sink = RecordingSink()
    load_weights(program_reading({"a": (7, 3), "v": (9,)}), source, sink)
    assert sink.finished == {name: source.tensors[name][1] for name in ("a", "v")}
    assert sink.largest_write_bytes <= max(buffer, 36)
    assert source.reads[0] == ("a", 0, {1: 1, 12: 1, 13: 1, 30: 2, 1000: 7}[buffer])


def test_no_more_than_the_buffer_is_held() -> None:
    rows = 5 * BUFFER_BYTES // 4096
    info = TensorInfo(name="w", shape=(rows, 1024), format=TensorFormat.F32)

    class ZeroSource(MemorySource):
        def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
            self.reads.append((name, start_row, end_row))

    class NullSink(RecordingSink):
        def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
            pass

        def finish(self, name: str) -> None:
            pass

    source = ZeroSource({"w": (info, b"")})
    tracemalloc.start()
    try:
        load_weights(program_reading({"w": info.shape}), source, NullSink())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(source.reads) == 5
    assert 2 * BUFFER_BYTES <= peak < STAGING_BYTES


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BUFFER_BYTES", 1)


@pytest.mark.usefixtures("row_by_row")
def test_the_next_rows_are_read_while_the_sink_takes_the_ones_before() -> None:
    num_rows = 9
    begun = [threading.Event() for _ in range(num_rows)]

    class WatchedSource(MemorySource):
        def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
            begun[start_row].set()
            super().read_rows(name, start_row, end_row, out)

    class WaitingSink(RecordingSink):
        def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
            if end_row < num_rows:
                assert begun[end_row].wait(10), "nothing is read while the sink is at work"
            super().write_rows(name, start_row, end_row, data)

    source = WatchedSource(source_of(a=((num_rows, 3), TensorFormat.F32)).tensors)
    sink = WaitingSink()
    load_weights(program_reading({"a": (num_rows, 3)}), source, sink)
    assert sink.finished["a"] == source.tensors["a"][1]


@pytest.mark.timing
@pytest.mark.usefixtures("row_by_row")
def test_it_takes_as_long_as_the_slower_side_and_not_as_both() -> None:
    num_rows, pause = 10, 0.2

    class SlowSource(MemorySource):
        def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
            time.sleep(pause)
            super().read_rows(name, start_row, end_row, out)

    class SlowSink(RecordingSink):
        def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
            time.sleep(pause)
            super().write_rows(name, start_row, end_row, data)

    source = SlowSource(source_of(a=((num_rows, 3), TensorFormat.F32)).tensors)
    report = load_weights(program_reading({"a": (num_rows, 3)}), source, SlowSink())
    assert num_rows * pause <= report.seconds < 1.8 * num_rows * pause


@pytest.mark.usefixtures("row_by_row")
def test_a_buffer_is_not_read_into_while_the_sink_has_it() -> None:
    class SlowSink(RecordingSink):
        def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
            time.sleep(0.005)  # the reader gets as far ahead as it can
            super().write_rows(name, start_row, end_row, data)

    source = source_of(a=((30, 3), TensorFormat.F32))
    sink = SlowSink()
    load_weights(program_reading({"a": (30, 3)}), source, sink)
    assert sink.finished["a"] == source.tensors["a"][1]


def test_the_report_counts_bytes_by_format() -> None:
    source = source_of(
        a=((3, 64), TensorFormat.Q8_0), b=((4, 3), TensorFormat.F32), v=((5,), TensorFormat.F32)
    )
    program = program_reading({"a": (3, 64), "b": (4, 3), "v": (5,)})
    report = load_weights(program, source, RecordingSink())
    assert report.weights == (("q8_0", 204), ("f32", 68))
    assert report.read_bytes == 272
    assert report.seconds > 0


def test_what_gets_another_format_is_named() -> None:
    def convert(*_: object) -> None:
        pass

    shapes = {"a": (2, 256), "b": (2, 96), "c": (2, 96), "d": (2, 20), "v": (20,)}
    source = source_of(**{name: (shape, TensorFormat.F32) for name, shape in shapes.items()})
    program = program_reading(shapes)
    report = load_weights(
        program, source, RecordingSink(), convert=convert, quantization=Quantization.Q4_K
    )
    assert report.read_bytes == sum(info.num_bytes for info, _ in source.tensors.values())
    assert dict(report.weights) == {"q4_k": 288, "q5_0": 2 * 2 * 66, "f32": 160 + 80}
    remarks = format_remarks(program, check_weights(program, source), Quantization.Q4_K)
    assert list(remark_lines((*remarks, *remarks))) == [
        "b and 1 more: q5_0 instead of q4_k, because rows of 96 are not a multiple of the block "
        "size 256",
        "d: f32 instead of q4_k, because rows of 20 are not a multiple of the block size 256",
    ]


def test_progress_is_in_bytes_and_ends_at_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BUFFER_BYTES", 24)
    calls: list[tuple[int, int]] = []
    load_weights(
        program_reading({"a": (4, 3), "v": (2,)}),
        source_of(a=((4, 3), TensorFormat.F32), v=((2,), TensorFormat.F16)),
        RecordingSink(),
        on_progress=lambda done, total: calls.append((done, total)),
    )
    assert calls == [(0, 52), (24, 52), (48, 52), (52, 52)]


def test_a_program_without_weights() -> None:
    sink = RecordingSink()
    load_weights(program_reading({}), source_of(), sink)
    assert sink.finished == {}


def test_the_first_problem_is_named_and_the_others_counted() -> None:
    source = source_of(a=((4, 3), TensorFormat.F32), b=((3, 4), TensorFormat.F32))
    sink = RecordingSink()
    with pytest.raises(ModelFileError) as caught:
        load_weights(
            program_reading({"a": (4, 3), "b": (4, 3), "c": (1,), "d": (2,)}),
            source,
            sink,
            path="m.gguf",
        )
    assert caught.value.message == (
        "m.gguf: the tensor b has shape [3, 4], but the model's configuration requires [4, 3] "
        "(and 2 similar problems)"
    )
    assert source.reads == []
    assert sink.num_writes == 0
    with pytest.raises(ModelFileError, match=r"the tensor c \[1\] is missing$"):
        load_weights(program_reading({"a": (4, 3), "c": (1,)}), source, sink)


def test_a_vector_is_not_a_matrix_of_one_row() -> None:
    with pytest.raises(ModelFileError, match=r"\[1, 4\].*\[4\]"):
        load_weights(
            program_reading({"v": (4,)}), source_of(v=((1, 4), TensorFormat.F32)), RecordingSink()
        )


def test_rows_that_are_not_whole_blocks() -> None:
    info = TensorInfo(name="w", shape=(2, 48), format=TensorFormat.Q8_0)
    with pytest.raises(
        ModelFileError, match="rows of 48, which are not a multiple of the q8_0 block size 32"
    ):
        load_weights(
            program_reading({"w": (2, 48)}), MemorySource({"w": (info, b"")}), RecordingSink()
        )


def test_a_quantized_vector_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="the vector v is stored as q8_0"):
        load_weights(
            program_reading({"v": (32,)}), source_of(v=((32,), TensorFormat.Q8_0)), RecordingSink()
        )


def test_an_error_of_the_sink_is_passed_on_and_ends_the_loading() -> None:
    source = source_of(a=((4, 3), TensorFormat.F32), b=((4, 3), TensorFormat.F32))
    with pytest.raises(MemoryError, match="sink"):
        load_weights(
            program_reading({"a": (4, 3), "b": (4, 3)}), source, RecordingSink(fail_after=1)
        )
    assert [name for name, _, _ in source.reads] == ["a", "b"]
    assert not source.is_closed


class TestQuantizing:
    """``convert`` is a stand-in that says in every row what it was asked."""

    @staticmethod
    def convert(
        rows: memoryview,
        stored: TensorFormat,
        out: memoryview,
        loaded: TensorFormat,
        num_rows: int,
        num_columns: int,
    ) -> None:
        assert (stored, loaded) == (TensorFormat.BF16, TensorFormat.Q8_0)
        assert len(rows) == num_rows * num_columns * 2
        assert len(out) == num_rows * num_columns // 32 * 34
        for row in range(num_rows):
            first = rows[row * num_columns * 2]
            out[row * len(out) // num_rows : (row + 1) * len(out) // num_rows] = bytes(
                [first] * (len(out) // num_rows)
            )

    @pytest.mark.parametrize("buffer", [1, 200, 1000])
    def test_matrices_arrive_converted_block_by_block(
        self, monkeypatch: pytest.MonkeyPatch, buffer: int
    ) -> None:
        monkeypatch.setattr(load, "BUFFER_BYTES", buffer)
        source = source_of(w=((7, 64), TensorFormat.BF16), v=((64,), TensorFormat.BF16))
        sink = RecordingSink()
        progress: list[tuple[int, int]] = []
        load_weights(
            program_reading({"w": (7, 64), "v": (64,)}),
            source,
            sink,
            convert=self.convert,
            quantization=Quantization.Q8_0,
            on_progress=lambda done, total: progress.append((done, total)),
        )
        stored = source.tensors["w"][1]
        assert sink.finished["w"] == b"".join(bytes([stored[row * 128]] * 68) for row in range(7))
        assert sink.finished["v"] == source.tensors["v"][1]
        assert progress[-1] == (8 * 128, 8 * 128)  # of what is read

    @pytest.mark.parametrize("quantization", [Quantization.NONE, Quantization.Q8_0])
    @pytest.mark.parametrize(
        ("stored", "loaded"),
        [
            (TensorFormat.F32, TensorFormat.F32),
            (TensorFormat.F16, TensorFormat.F32),
            (TensorFormat.BF16, TensorFormat.F32),
            (TensorFormat.Q4_0, TensorFormat.Q4_0),
        ],
    )
    def test_a_router_is_float32(
        self, quantization: Quantization, stored: TensorFormat, loaded: TensorFormat
    ) -> None:
        converted: list[tuple[TensorFormat, TensorFormat]] = []

        def convert(
            rows: memoryview,
            stored: TensorFormat,
            out: memoryview,
            loaded: TensorFormat,
            num_rows: int,
            num_columns: int,
        ) -> None:
            converted.append((stored, loaded))
            assert len(out) == num_rows * num_columns * 4

        sink = RecordingSink()
        load_weights(
            program_reading({"w": (7, 64)}, routers=("w",)),
            source_of(w=((7, 64), stored)),
            sink,
            convert=convert,
            quantization=quantization,
        )
        assert sink.infos["w"].format is loaded
        assert converted == ([(stored, loaded)] if stored is not loaded else [])

    def test_a_format_without_kernels_becomes_q8_0_and_a_remark_says_so(self) -> None:
        program = program_reading({"w": (2, 256), "x": (2, 256)})
        infos = [
            TensorInfo(name="w", shape=(2, 256), format=TensorFormat.IQ3_S),
            TensorInfo(name="x", shape=(2, 256), format=TensorFormat.Q4_K),
        ]
        for quantization in Quantization:
            w, x = loaded_weights(program, infos, quantization)
            assert (w.format, x.format) == (TensorFormat.Q8_0, TensorFormat.Q4_K)
            (remark,) = format_remarks(program, infos, quantization)
            assert remark.name == "w"
            assert remark.remark == "q8_0, because there are no kernels for iq3_s"

    def test_the_tensor_is_named_that_cannot_be_converted(self) -> None:
        def refuse(*_: object) -> None:
            raise EngineError("row 2 has a value that is not finite", hint="download it again")

        with pytest.raises(ModelFileError) as caught:
            load_weights(
                program_reading({"w": (7, 64)}),
                source_of(w=((7, 64), TensorFormat.BF16)),
                RecordingSink(),
                convert=refuse,
                quantization=Quantization.Q8_0,
                path="m",
            )
        assert caught.value.message == "m: w, rows from 0: row 2 has a value that is not finite"
        assert caught.value.hint == "download it again"

    def test_to_quantize_needs_something_that_converts(self) -> None:
        with pytest.raises(ValueError, match="no conversion function"):
            load_weights(
                program_reading({"w": (7, 64)}),
                source_of(w=((7, 64), TensorFormat.BF16)),
                RecordingSink(),
                quantization=Quantization.Q8_0,
            )


def test_the_next_rows_are_read_while_those_before_are_taken() -> None:
    taking = threading.Event()

    class Source(MemorySource):
        def read_rows(self, name: str, start_row: int, end_row: int, out: memoryview) -> None:
            if name == "b":
                assert taking.wait(10)  # for the sink to be at work on what came before
            super().read_rows(name, start_row, end_row, out)

    class Sink(RecordingSink):
        def write_rows(self, name: str, start_row: int, end_row: int, data: memoryview) -> None:
            if name == "a":
                taking.set()
            super().write_rows(name, start_row, end_row, data)

    source = Source(source_of(a=((4, 3), TensorFormat.F32), b=((4, 3), TensorFormat.F32)).tensors)
    sink = Sink()
    load_weights(program_reading({"a": (4, 3), "b": (4, 3)}), source, sink)
    assert sink.finished == {name: source.tensors[name][1] for name in ("a", "b")}
