from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize
from gguf.quants import quantize
from numpy.typing import NDArray
from support.models.tensor_sources import MemorySource, read_in_pieces, read_whole

from potluck.engines.dequantize import dequantize
from potluck.errors import ModelFileError
from potluck.types.tensor import (
    InterleavedHeads,
    RowRange,
    StoredTensor,
    TensorFormat,
    TensorInfo,
)
from potluck.weights import canonical
from potluck.weights.canonical import CanonicalSource
from potluck.weights.load import UNDOING_BYTES


def permute(weights: NDArray[Any], num_heads: int) -> NDArray[Any]:
    """What llama.cpp's converter does to q and k, as the GGUF specification has it."""
    half = weights.shape[0] // num_heads // 2
    return (
        weights.reshape(num_heads, 2, half, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def interleaved(
    rows: NDArray[Any], num_heads: int, format: TensorFormat, columns: int | None = None
) -> tuple[MemorySource, CanonicalSource]:
    """A source that stores ``permute(rows)``; rows of a quantized format are given as bytes."""
    shape = rows.shape if columns is None else (rows.shape[0], columns)
    info = TensorInfo(name="blk.0.attn_q", shape=shape, format=format)
    raw = MemorySource({"blk.0.attn_q": (info, permute(rows, num_heads).tobytes())})
    head_dim = rows.shape[0] // num_heads
    heads = InterleavedHeads(num_heads=num_heads, head_dim=head_dim, rotary_dim=head_dim)
    stored = StoredTensor(canonical_name="q", stored_names=("blk.0.attn_q",), interleaved=heads)
    return raw, CanonicalSource(raw, [stored])


def test_names_are_canonical_and_rows_as_stored() -> None:
    info = TensorInfo(name="output.weight", shape=(2, 2), format=TensorFormat.F16)
    raw = MemorySource({"output.weight": (info, b"aabbccdd"), "unknown": (info, b"")})
    source = CanonicalSource(
        raw,
        [
            StoredTensor(canonical_name="absent", stored_names=("absent.weight",)),
            StoredTensor(canonical_name="head", stored_names=("output.weight",)),
        ],
    )
    assert list(source.names()) == ["head"]
    assert source.info("head") == TensorInfo(name="head", shape=(2, 2), format=TensorFormat.F16)
    assert read_whole(source, "head") == b"aabbccdd"
    for name in ("absent", "output.weight", "unknown"):
        with pytest.raises(KeyError):
            source.info(name)
        with pytest.raises(KeyError):
            source.read_rows(name, 0, 0, memoryview(b""))
    source.close()
    assert raw.is_closed


@pytest.mark.parametrize("shape", [(4, 1, 3), (4, 3)])
def test_a_flat_tensor_is_a_vector_of_all_rows(shape: tuple[int, ...]) -> None:
    info = TensorInfo(name="conv.weight", shape=shape, format=TensorFormat.F16)
    raw = MemorySource({"conv.weight": (info, bytes(range(24)))})
    stored = StoredTensor(
        canonical_name="kernel", stored_names=("conv.weight",), is_flat=True, shape=(12,)
    )
    source = CanonicalSource(raw, [stored])
    assert source.info("kernel") == TensorInfo(name="kernel", shape=(12,), format=TensorFormat.F16)
    assert read_whole(source, "kernel") == bytes(range(24))


def test_a_column_is_a_vector() -> None:
    info = TensorInfo(name="ssm_d", shape=(4, 1), format=TensorFormat.F32)
    raw = MemorySource({"ssm_d": (info, bytes(range(16)))})
    stored = StoredTensor(canonical_name="skip", stored_names=("ssm_d",), shape=(4,))
    source = CanonicalSource(raw, [stored])
    assert source.info("skip").shape == (4,)
    assert read_whole(source, "skip") == bytes(range(16))


STACK = StoredTensor(canonical_name="w", stored_names=("w0", "w1", "w2"), is_stacked=True)


def stack_of(**changed: TensorInfo | None) -> tuple[MemorySource, CanonicalSource]:
    """Three matrices ``[4, 3]`` of f16, whose bytes are 0 to 71; ``changed`` ones are without."""
    tensors = {}
    for index, name in enumerate(STACK.stored_names):
        info = changed.get(name, TensorInfo(name=name, shape=(4, 3), format=TensorFormat.F16))
        if info is not None:
            tensors[name] = (info, bytes(range(24 * index, 24 * index + 24)))
    raw = MemorySource(tensors)
    return raw, CanonicalSource(raw, [STACK], path="m")


@pytest.mark.parametrize("piece_rows", [1, 3, 4, 5, 9, 1000])
def test_a_stack_is_one_tensor(piece_rows: int) -> None:
    raw, source = stack_of()
    assert list(source.names()) == ["w"]
    assert source.info("w") == TensorInfo(name="w", shape=(3, 4, 3), format=TensorFormat.F16)
    assert read_in_pieces(source, "w", piece_rows) == bytes(range(72))
    assert sum(end - start for _, start, end in raw.reads) == 12  # each once
    for start, end in ((-1, 2), (5, 4), (10, 13)):
        with pytest.raises(ValueError, match="has no rows"):
            source.read_rows("w", start, end, memoryview(b""))
    with pytest.raises(ValueError, match="5 B are not rows"):
        source.read_rows("w", 0, 1, memoryview(bytearray(5)))


def test_a_matrix_of_a_stack_that_is_missing_or_unlike_the_others() -> None:
    for missing in STACK.stored_names:
        with pytest.raises(ModelFileError, match=f"m: the tensor {missing} is missing"):
            stack_of(**{missing: None})[1].info("w")
    _, none = stack_of(w0=None, w1=None, w2=None)
    assert list(none.names()) == []
    with pytest.raises(KeyError):
        none.info("w")
    wide = TensorInfo(name="w2", shape=(4, 4), format=TensorFormat.F16)
    with pytest.raises(
        ModelFileError, match=r"w2 is f16 \[4, 4\], but w0 in the same stack is f16 \[4, 3\]"
    ):
        stack_of(w2=wide)[1].info("w")
    other = TensorInfo(name="w1", shape=(4, 3), format=TensorFormat.BF16)
    with pytest.raises(ModelFileError, match=r"w1 is bf16 \[4, 3\], but w0"):
        stack_of(w1=other)[1].info("w")


def test_a_canonical_name_given_twice() -> None:
    stored = StoredTensor(canonical_name="head", stored_names=("output.weight",))
    with pytest.raises(ValueError, match="head is given twice"):
        CanonicalSource(MemorySource({}), [stored, stored])


@pytest.mark.parametrize(("num_heads", "head_rows"), [(1, 2), (3, 8), (4, 6), (2, 64)])
@pytest.mark.parametrize("piece_rows", [1, 3, 4, 7, 1000])
def test_interleaved_rows_of_a_matrix(num_heads: int, head_rows: int, piece_rows: int) -> None:
    rows = np.arange(num_heads * head_rows * 5, dtype=np.float32).reshape(-1, 5)
    _, source = interleaved(rows, num_heads, TensorFormat.F32)
    assert read_in_pieces(source, "q", piece_rows) == rows.tobytes()


def test_every_row_range() -> None:
    rows = np.arange(2 * 6 * 3, dtype=np.float32).reshape(12, 3)
    _, source = interleaved(rows, 2, TensorFormat.F32)
    for start in range(13):
        for end in range(start, 13):
            out = bytearray((end - start) * 12)
            source.read_rows("q", start, end, memoryview(out))
            assert out == rows[start:end].tobytes()


def test_interleaved_rows_of_quantized_blocks() -> None:
    rows = np.random.default_rng(3).integers(0, 256, (16, 2 * 144), dtype=np.uint8)
    _, source = interleaved(rows, 2, TensorFormat.Q4_K, columns=512)
    assert source.info("q").shape == (16, 512)
    assert read_in_pieces(source, "q", 5) == rows.tobytes()


@pytest.mark.parametrize("format", [TensorFormat.F32, TensorFormat.F16])
def test_interleaved_elements_of_a_vector(format: TensorFormat) -> None:
    vector = np.arange(24, dtype=np.float32 if format is TensorFormat.F32 else np.float16)
    _, source = interleaved(vector, 3, format)
    assert read_whole(source, "q") == vector.tobytes()
    source.read_rows("q", 0, 0, memoryview(b""))


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "UNDOING_BYTES", 4 * 20)
    rows = np.arange(2 * 32 * 5, dtype=np.float32).reshape(-1, 5)
    raw, source = interleaved(rows, 2, TensorFormat.F32)
    assert read_whole(source, "q") == rows.tobytes()
    assert raw.largest_read_bytes == 4 * 20
    monkeypatch.setattr(canonical, "UNDOING_BYTES", 1)
    raw.largest_read_bytes = 0
    assert read_whole(source, "q") == rows.tobytes()
    assert raw.largest_read_bytes == 2 * 20  # one pair of rows


@pytest.mark.parametrize(
    ("shape", "format", "num_heads"),
    [
        ((10, 4), TensorFormat.F32, 3),
        ((9, 4), TensorFormat.F32, 3),
        ((10,), TensorFormat.F32, 4),
        ((), TensorFormat.F32, 1),
        ((64,), TensorFormat.Q8_0, 2),
    ],
)
def test_rows_that_cannot_be_those_of_the_heads(
    shape: tuple[int, ...], format: TensorFormat, num_heads: int
) -> None:
    info = TensorInfo(name="stored", shape=shape, format=format)
    raw = MemorySource({"stored": (info, bytes(info.num_bytes))})
    heads = InterleavedHeads(num_heads=num_heads, head_dim=4, rotary_dim=4)
    stored = StoredTensor(canonical_name="q", stored_names=("stored",), interleaved=heads)
    source = CanonicalSource(raw, [stored], path="m.gguf")
    with pytest.raises(ModelFileError, match=rf"m.gguf: .*{num_heads} interleaved heads"):
        read_whole(source, "q")


@pytest.mark.parametrize(("start", "end", "size"), [(-1, 0, 8), (0, 5, 40), (0, 1, 7), (0, 1, 9)])
def test_rows_that_do_not_exist_or_fit(start: int, end: int, size: int) -> None:
    _, source = interleaved(np.zeros((4, 2), np.float32), 1, TensorFormat.F32)
    with pytest.raises(ValueError, match="rows"):
        source.read_rows("q", start, end, memoryview(bytearray(size)))


def test_some_rows_of_a_tensor() -> None:
    info = TensorInfo(name="lm_head.weight", shape=(4, 1), format=TensorFormat.F16)
    raw = MemorySource({"lm_head.weight": (info, b"aabbccdd")})
    stored = StoredTensor(
        canonical_name="classifier",
        stored_names=("lm_head.weight",),
        rows=(range(3, 4), range(2)),
    )
    source = CanonicalSource(raw, [stored])
    assert source.info("classifier").shape == (3, 1)
    assert read_whole(source, "classifier") == b"ddaabb"
    assert read_in_pieces(source, "classifier", 2) == b"ddaabb"
    for bounds, size in (((0, 4), 8), ((2, 1), 0), ((0, 1), 4)):
        with pytest.raises(ValueError, match="classifier"):
            source.read_rows("classifier", *bounds, memoryview(bytearray(size)))
    beyond = StoredTensor(
        canonical_name="beyond", stored_names=("lm_head.weight",), rows=(range(2), range(3, 5))
    )
    with pytest.raises(ModelFileError, match="rows 0 to 4"):
        CanonicalSource(raw, [beyond]).info("beyond")


@pytest.mark.parametrize("piece_rows", [1, 2, 3, 5, 1000])
def test_runs_of_rows(piece_rows: int) -> None:
    rows = np.arange(12 * 5, dtype=np.float32).reshape(12, 5)
    info = TensorInfo(name="qkvz", shape=(12, 5), format=TensorFormat.F32)
    raw = MemorySource({"qkvz": (info, rows.tobytes())})
    runs = (range(2), range(6, 8), range(2, 3), range(8, 11))
    stored = StoredTensor(canonical_name="qkv", stored_names=("qkvz",), rows=runs)
    source = CanonicalSource(raw, [stored])
    assert source.info("qkv").shape == (8, 5)
    expected = rows[[0, 1, 6, 7, 2, 8, 9, 10]].tobytes()
    assert read_in_pieces(source, "qkv", piece_rows) == expected
    if piece_rows == 1000:
        assert [(start, end) for _, start, end in raw.reads] == [(0, 2), (6, 8), (2, 3), (8, 11)]


@pytest.mark.parametrize("format", [TensorFormat.F32, TensorFormat.F16, TensorFormat.BF16])
def test_minus_the_exponential_of_a_vector(format: TensorFormat) -> None:
    values = np.array([0.0, -2.5, 2.75, 0.5], np.float32)
    data = values.astype(np.float16 if format is TensorFormat.F16 else np.float32).tobytes()
    if format is TensorFormat.BF16:
        data = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    info = TensorInfo(name="A_log", shape=(4,), format=format)
    stored = StoredTensor(canonical_name="rate", stored_names=("A_log",), is_negative_exp=True)
    source = CanonicalSource(MemorySource({"A_log": (info, data)}), [stored])
    assert source.info("rate") == TensorInfo(name="rate", shape=(4,), format=TensorFormat.F32)
    rate = np.frombuffer(read_whole(source, "rate"), np.float32)
    np.testing.assert_allclose(rate, [-1, -0.0820849986, -15.6426318842, -1.6487212707], rtol=1e-7)


def transposed_stack(
    values: NDArray[Any], format: TensorFormat, **part: Any
) -> tuple[MemorySource, CanonicalSource]:
    """A source that stores the transpose of each of ``values``, of which a part may be wanted."""
    stored = np.ascontiguousarray(values.swapaxes(1, 2))
    info = TensorInfo(name="gate_up", shape=stored.shape, format=format)
    raw = MemorySource({"gate_up": (info, stored.tobytes())})
    tensor = StoredTensor(
        canonical_name="gate", stored_names=("gate_up",), is_transposed=True, **part
    )
    return raw, CanonicalSource(raw, [tensor])


@pytest.mark.parametrize("format", [TensorFormat.F32, TensorFormat.BF16])
def test_transposed_matrices_are_turned(format: TensorFormat) -> None:
    dtype = np.float32 if format is TensorFormat.F32 else np.uint16
    values = np.arange(3 * 10 * 4).reshape(3, 10, 4).astype(dtype)
    _, source = transposed_stack(values, format)
    assert source.info("gate").shape == (3, 10, 4)
    assert read_whole(source, "gate") == values.tobytes()
    assert read_in_pieces(source, "gate", 7) == values.tobytes()

    part = RowRange(start=1, num_rows=5, stride=2)
    _, source = transposed_stack(values, format, row_range=part)
    wanted = np.ascontiguousarray(values[:, 1::2])
    assert source.info("gate").shape == wanted.shape
    assert source.transposing_bytes("gate") == values[0].nbytes + UNDOING_BYTES
    assert read_whole(source, "gate") == wanted.tobytes()
    assert read_in_pieces(source, "gate", 3) == wanted.tobytes()


def test_quantized_matrices_are_never_transposed() -> None:
    info = TensorInfo(name="gate_up", shape=(1, 2, 32), format=TensorFormat.MXFP4)
    data = bytes(range(34))
    stored = StoredTensor(
        canonical_name="gate",
        stored_names=("gate_up",),
        row_range=RowRange(start=1, num_rows=1, stride=2),
        is_transposed=True,
    )
    source = CanonicalSource(MemorySource({"gate_up": (info, data)}), [stored])
    assert source.info("gate").shape == (1, 1, 32)
    assert source.transposing_bytes("gate") == 0
    assert read_whole(source, "gate") == data[17:]


HEADS, KEY_ROWS, VALUE_ROWS, RANK = 3, 4, 5, 6
"""Of a matrix from a latent row up to the keys and the values of heads."""


def up_from_latent(
    format: TensorFormat,
) -> tuple[NDArray[Any], MemorySource, CanonicalSource]:
    """The matrix, and a source with the transposes of the keys' rows, and with the values' rows."""
    dtype = np.float32 if format is TensorFormat.F32 else np.uint16
    shape = (HEADS, KEY_ROWS + VALUE_ROWS, RANK)
    values = np.arange(HEADS * (KEY_ROWS + VALUE_ROWS) * RANK).reshape(shape).astype(dtype)
    info = TensorInfo(name="kv_b", shape=(shape[0] * shape[1], RANK), format=format)
    raw = MemorySource({"kv_b": (info, values.tobytes())})
    parts = {
        "k_up": StoredTensor(
            canonical_name="k_up",
            stored_names=("kv_b",),
            num_matrices=HEADS,
            row_range=RowRange(start=0, num_rows=KEY_ROWS),
            is_part_transposed=True,
        ),
        "v_up": StoredTensor(
            canonical_name="v_up",
            stored_names=("kv_b",),
            num_matrices=HEADS,
            row_range=RowRange(start=KEY_ROWS, num_rows=VALUE_ROWS),
        ),
    }
    return values, raw, CanonicalSource(raw, parts.values(), path="m")


@pytest.mark.parametrize("piece_rows", [1, 4, 5, 7, 1000])
@pytest.mark.parametrize("format", [TensorFormat.F32, TensorFormat.BF16])
def test_parts_of_each_head_and_their_transposes(format: TensorFormat, piece_rows: int) -> None:
    values, raw, source = up_from_latent(format)
    keys = np.ascontiguousarray(values[:, :KEY_ROWS].swapaxes(1, 2))
    assert source.info("k_up") == TensorInfo(
        name="k_up", shape=(HEADS, RANK, KEY_ROWS), format=format
    )
    assert source.transposing_bytes("k_up") == keys[0].nbytes + UNDOING_BYTES
    assert read_in_pieces(source, "k_up", piece_rows) == keys.tobytes()
    assert sum(end - start for _, start, end in raw.reads) == HEADS * KEY_ROWS  # each once
    assert source.info("v_up").shape == (HEADS, VALUE_ROWS, RANK)
    assert source.transposing_bytes("v_up") == 0
    assert read_in_pieces(source, "v_up", piece_rows) == values[:, KEY_ROWS:].tobytes()


def test_transposing_a_part_holds_one_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canonical, "UNDOING_BYTES", 1)
    values, raw, source = up_from_latent(TensorFormat.F32)
    assert read_whole(source, "k_up") == values[:, :KEY_ROWS].swapaxes(1, 2).tobytes()
    assert raw.largest_read_bytes == RANK * 4  # one row


def test_a_part_in_blocks_becomes_float32() -> None:
    rows = np.random.default_rng(5).standard_normal((6, 64)).astype(np.float32)
    stored_rows = quantize(rows, GGMLQuantizationType.Q8_0)
    values = gguf_dequantize(stored_rows, GGMLQuantizationType.Q8_0).reshape(2, 3, 64)
    info = TensorInfo(name="attn_kv_b.weight", shape=(6, 64), format=TensorFormat.Q8_0)
    stored = StoredTensor(
        canonical_name="k_up",
        stored_names=(info.name,),
        num_matrices=2,
        row_range=RowRange(start=0, num_rows=2),
        is_part_transposed=True,
    )
    raw = MemorySource({info.name: (info, stored_rows.tobytes())})
    source = CanonicalSource(raw, [stored], dequantize=dequantize)
    assert source.info("k_up") == TensorInfo(name="k_up", shape=(2, 64, 2), format=TensorFormat.F32)
    assert source.transposing_bytes("k_up") == 2 * 64 * 4 + UNDOING_BYTES
    assert read_in_pieces(source, "k_up", 50) == values[:, :2].swapaxes(1, 2).tobytes()
    with pytest.raises(ValueError, match=r"no function to dequantize attn_kv_b.weight"):
        read_whole(CanonicalSource(raw, [stored]), "k_up")


@pytest.mark.parametrize("shape", [(10, 4), (3, 4, 4)])
def test_rows_that_cannot_be_those_of_so_many_matrices(shape: tuple[int, ...]) -> None:
    info = TensorInfo(name="kv_b", shape=shape, format=TensorFormat.F32)
    raw = MemorySource({"kv_b": (info, bytes(info.num_bytes))})
    stored = StoredTensor(canonical_name="v_up", stored_names=("kv_b",), num_matrices=3)
    with pytest.raises(ModelFileError, match=r"m: the tensor kv_b, .* of 3 heads"):
        CanonicalSource(raw, [stored], path="m").info("v_up")


@pytest.mark.parametrize("part", [None, RowRange(start=6, num_rows=8)])
@pytest.mark.parametrize("piece_rows", [1, 3, 8, 11, 1000])
def test_rows_that_turn_after_others(piece_rows: int, part: RowRange | None) -> None:
    """Of queries in heads of 6 and 8 rows, and of keys whose 8 rows come after 6 others."""
    num_heads = 3 if part is None else 1
    heads = InterleavedHeads(num_heads=num_heads, head_dim=14, rotary_dim=8, start=6)
    rows = np.arange(num_heads * 14 * 5, dtype=np.float32).reshape(num_heads, 14, 5)
    turned = rows[:, 6:].reshape(num_heads, 2, 4, 5).swapaxes(1, 2).reshape(num_heads, 8, 5)
    info = TensorInfo(name="stored", shape=(num_heads * 14, 5), format=TensorFormat.F32)
    raw = MemorySource({"stored": (info, np.concatenate([rows[:, :6], turned], 1).tobytes())})
    stored = StoredTensor(
        canonical_name="q", stored_names=("stored",), interleaved=heads, row_range=part
    )
    source = CanonicalSource(raw, [stored])
    wanted = rows if part is None else rows[:, 6:]
    assert source.info("q").num_rows * 20 == wanted.nbytes
    assert read_in_pieces(source, "q", piece_rows) == wanted.tobytes()


def test_elements_that_turn_after_others() -> None:
    vector = np.arange(14, dtype=np.float32)
    turned = vector[6:].reshape(2, 4).T.reshape(8)
    info = TensorInfo(name="bias", shape=(14,), format=TensorFormat.F32)
    raw = MemorySource({"bias": (info, np.concatenate([vector[:6], turned]).tobytes())})
    stored = StoredTensor(
        canonical_name="k_rope",
        stored_names=("bias",),
        interleaved=InterleavedHeads(num_heads=1, head_dim=14, rotary_dim=8, start=6),
        row_range=RowRange(start=6, num_rows=8, of_vectors=True),
    )
    assert read_whole(CanonicalSource(raw, [stored]), "k_rope") == vector[6:].tobytes()
