from __future__ import annotations

import struct
import time
import tracemalloc
from array import array
from pathlib import Path

import pytest
from support import gguf_bytes as gb

from potluck.errors import ModelFileError
from potluck.formats.gguf import open_gguf
from potluck.formats.gguf_metadata import MAX_HEADER_BYTES, MetadataValue


def metadata_of(tmp_path: Path, *entries: bytes) -> dict[str, MetadataValue]:
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.Gguf(entries=entries).build())
    with open_gguf(path) as source:
        return source.metadata


def error_of(tmp_path: Path, *entries: bytes, num_entries: int | None = None) -> str:
    path = tmp_path / "m.gguf"
    path.write_bytes(gb.Gguf(entries=entries, num_entries=num_entries).header())
    with pytest.raises(ModelFileError) as caught:
        open_gguf(path)
    return caught.value.message


@pytest.mark.parametrize(
    ("type_number", "code", "value"),
    [
        (0, "<B", 200),
        (1, "<b", -100),
        (2, "<H", 60000),
        (3, "<h", -30000),
        (4, "<I", 4_000_000_000),
        (5, "<i", -2_000_000_000),
        (6, "<f", 0.5),
        (7, "<?", True),
        (10, "<Q", 2**64 - 1),
        (11, "<q", -(2**63)),
        (12, "<d", 0.1),
    ],
)
def test_every_scalar_type_alone_and_in_an_array(
    tmp_path: Path, type_number: int, code: str, value: float
) -> None:
    packed = struct.pack(code, value)
    found = metadata_of(
        tmp_path,
        gb.entry("alone", type_number, packed),
        gb.entry("many", 9, gb.array(type_number, 3, packed * 3)),
    )
    assert found["alone"] == value
    assert type(found["alone"]) is type(value)
    many = found["many"]
    assert isinstance(many, list if code == "<?" else array)
    assert list(many) == [value] * 3


def test_strings(tmp_path: Path) -> None:
    found = metadata_of(
        tmp_path,
        gb.entry("empty", 8, gb.text("")),
        gb.entry("text", 8, gb.text("Größe\n")),
        gb.entry("broken", 8, gb.text(b"a\xffb")),
        gb.entry("many", 9, gb.array(8, 3, gb.text("a") + gb.text("") + gb.text(b"\xe2\x96"))),
    )
    assert found["empty"] == ""
    assert found["text"] == "Größe\n"
    assert found["many"] == ["a", "", "\udce2\udc96"]
    broken = found["broken"]
    assert isinstance(broken, str)
    assert broken.encode("utf-8", "surrogateescape") == b"a\xffb"


def test_nested_arrays_down_to_a_bounded_depth(tmp_path: Path) -> None:
    value = gb.array(4, 2, gb.u32(7) + gb.u32(8))
    nested = gb.array(9, 2, value + gb.array(8, 1, gb.text("x")))
    assert metadata_of(tmp_path, gb.entry("k", 9, nested))["k"] == [array("I", [7, 8]), ["x"]]
    deep = gb.array(9, 1, b"") * 100_000
    assert "depth 4" in error_of(tmp_path, gb.entry("k", 9, deep))


def test_strings_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    # 1 MiB is the window; strings begin before, on and after its edges.
    sizes = [2**20 - 100, 60, 4, 2**20 + 1, 3 * 2**20, 0, 9]
    texts = [chr(ord("a") + index) * size for index, size in enumerate(sizes)]
    packed = b"".join(gb.text(text) for text in texts)
    numbers = array("I", range(600_000))
    found = metadata_of(
        tmp_path,
        gb.entry("texts", 9, gb.array(8, len(texts), packed)),
        gb.entry("numbers", 9, gb.array(4, len(numbers), numbers.tobytes())),
        gb.entry("last", 8, gb.text("z" * (2**20 + 5))),
    )
    assert found["texts"] == texts
    assert found["numbers"] == numbers
    assert found["last"] == "z" * (2**20 + 5)


@pytest.mark.parametrize("shift", range(12))
def test_strings_at_every_place_across_the_edge_of_a_window(tmp_path: Path, shift: int) -> None:
    texts = ["p" * (2**20 - 100 + shift), *(f"{number:03}" for number in range(40))]
    packed = b"".join(gb.text(text) for text in texts)
    found = metadata_of(tmp_path, gb.entry("texts", 9, gb.array(8, len(texts), packed)))
    assert found["texts"] == texts


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([gb.entry("k", 13, b"")], "metadata 'k' has the unknown type 13"),
        ([gb.entry("k", 9, gb.array(13, 0, b""))], "array of type 13"),
        ([gb.entry("k", 7, b"\x02")], "neither true nor false"),
        ([gb.entry("k", 9, gb.array(7, 2, b"\x01\x02"))], "neither true nor false"),
        ([gb.entry("k", 0, b"1"), gb.entry("k", 0, b"1")], "'k' is there twice"),
        ([gb.entry(b"\xff", 0, b"1")], "metadata key 0 is not UTF-8"),
        ([gb.entry("k" * 65536, 0, b"1")], "metadata key 0 would have 65536 bytes"),
        ([gb.entry("k", 8, struct.pack("<Q", 2**64 - 1))], "truncated"),
        ([gb.entry("k", 8, struct.pack("<Q", 1))], "truncated"),
        ([gb.entry("k", 9, gb.array(4, 2**62, b""))], "truncated"),
        ([gb.entry("k", 9, gb.array(8, 2**64 - 1, b""))], "truncated"),
        ([gb.entry("k", 9, gb.array(8, 2, gb.text("a") + struct.pack("<Q", 2)))], "truncated"),
        ([gb.entry("k", 9, gb.array(9, 2**40, b""))], "truncated"),
        # The count is refused before its elements are read: 24 + 13 + 12 bytes come before them.
        ([gb.entry("k", 9, gb.array(9, 2**40, bytes(99)))], f"up to {49 + 12 * 2**40},"),
        ([gb.entry("k", 9, gb.array(8, 2**40, bytes(99)))], f"up to {49 + 8 * 2**40},"),
    ],
)
def test_corrupt_values(tmp_path: Path, entries: list[bytes], message: str) -> None:
    assert message in error_of(tmp_path, *entries)


def test_counts_that_no_model_has(tmp_path: Path) -> None:
    assert "metadata entries" in error_of(tmp_path, num_entries=2**16 + 1)


def test_a_header_without_end_is_refused_before_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    size = 2 * MAX_HEADER_BYTES
    value = struct.pack("<Q", size)
    path.write_bytes(gb.Gguf(entries=[gb.entry("k", 8, value)]).build())
    with path.open("r+b") as file:
        file.truncate(2 * size)  # sparse: takes no room
    tracemalloc.start()
    try:
        with pytest.raises(ModelFileError, match="would make the header larger"):
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_large_vocabulary_is_read_quickly(tmp_path: Path) -> None:
    """151,936 tokens and 151,387 merges, as Qwen has: 0.17 s where this was written."""
    tokens = [f"token-{number}" for number in range(151_936)]
    merges = [f"{tokens[number]} {tokens[-number]}" for number in range(151_387)]
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gb.Gguf(
            entries=[
                gb.entry(key, 9, gb.array(8, len(texts), b"".join(map(gb.text, texts))))
                for key, texts in (("tokens", tokens), ("merges", merges))
            ]
        ).build()
    )
    start = time.perf_counter()
    with open_gguf(path) as source:
        seconds = time.perf_counter() - start
        assert source.metadata == {"tokens": tokens, "merges": merges}
    assert seconds < 2
