from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from support.safetensors_bytes import safetensors_bytes, tensor_entry
from support.tensor_sources import read_in_pieces, read_whole

from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats.safetensors import MAX_HEADER_BYTES, open_safetensors
from potluck.types.tensor import TensorFormat, TensorInfo

F32_PAIR = tensor_entry("F32", [2], 0, 8)


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    return path


def error_of(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_safetensors(write(tmp_path, content))
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def test_reads_what_the_reference_wrote(tmp_path: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {
        "matrix": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.arange(6, dtype=np.float16).reshape(3, 2),
        "vector": np.arange(5, dtype=np.float32),
        "scalar": np.array(7, dtype=np.float32),
        "empty": np.zeros((0, 4), dtype=np.float32),
    }
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with open_safetensors(tmp_path) as source:
        assert set(source.names()) == arrays.keys()
        for name, array in arrays.items():
            format = TensorFormat.F16 if name == "half" else TensorFormat.F32
            assert source.info(name) == TensorInfo(name=name, shape=array.shape, format=format)
            assert read_whole(source, name) == array.tobytes()
            assert read_in_pieces(source, name, 2) == array.tobytes()


def test_tensors_are_listed_as_they_lie_in_the_file(tmp_path: Path) -> None:
    header = {"a": tensor_entry("F32", [1], 4, 8), "b": tensor_entry("F32", [1], 0, 4)}
    with open_safetensors(write(tmp_path, safetensors_bytes(header, b"bbbbaaaa"))) as source:
        assert list(source.names()) == ["b", "a"]
        assert read_whole(source, "a") == b"aaaa"


def test_bfloat16_keeps_its_bytes(tmp_path: Path) -> None:
    content = safetensors_bytes({"w": tensor_entry("BF16", [1, 2], 0, 4)}, b"\x80\x3f\x00\x40")
    with open_safetensors(write(tmp_path, content)) as source:
        assert source.info("w").format is TensorFormat.BF16
        assert read_whole(source, "w") == b"\x80\x3f\x00\x40"


@pytest.mark.parametrize("dtype", ["I64", "F8_E4M3", "F64", "X9"])
def test_other_types_are_listed_and_refused_when_needed(tmp_path: Path, dtype: str) -> None:
    header = {"w": tensor_entry(dtype, [1], 0, 1 if dtype == "F8_E4M3" else 8)}
    content = safetensors_bytes(
        header | {"v": tensor_entry("F32", [0], 0, 0)}, bytes(1 if dtype == "F8_E4M3" else 8)
    )
    with open_safetensors(write(tmp_path, content)) as source:
        assert set(source.names()) == {"v", "w"}
        assert source.info("v").num_bytes == 0
        with pytest.raises(UnsupportedModelError, match=rf"'w' is stored as '?{dtype}") as caught:
            source.info("w")
        assert caught.value.missing[0].strip("'") == dtype
        with pytest.raises(UnsupportedModelError):
            source.read_rows("w", 0, 1, memoryview(bytearray(8)))


def test_an_unknown_name_is_a_key_error(tmp_path: Path) -> None:
    with (
        open_safetensors(write(tmp_path, safetensors_bytes({}))) as source,
        pytest.raises(KeyError),
    ):
        source.info("w")


@pytest.mark.parametrize(
    ("start", "end", "size"), [(-1, 1, 16), (0, 3, 24), (2, 1, 0), (0, 1, 7), (0, 1, 9)]
)
def test_rows_that_do_not_exist_or_fit(tmp_path: Path, start: int, end: int, size: int) -> None:
    content = safetensors_bytes({"w": tensor_entry("F32", [2, 2], 0, 16)}, bytes(16))
    with open_safetensors(write(tmp_path, content)) as source, pytest.raises(ValueError, match="w"):
        source.read_rows("w", start, end, memoryview(bytearray(size)))


def test_a_file_truncated_after_opening(tmp_path: Path) -> None:
    path = write(tmp_path, safetensors_bytes({"w": F32_PAIR}, bytes(8)))
    with open_safetensors(path) as source:
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(ModelFileError, match="truncated"):
            read_whole(source, "w")


def test_padding_after_the_header_is_allowed(tmp_path: Path) -> None:
    header = json.dumps({"w": F32_PAIR}).encode() + b"     "
    with open_safetensors(write(tmp_path, safetensors_bytes(header, bytes(8)))) as source:
        assert source.info("w").shape == (2,)


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        (b"", b"", "not valid JSON"),
        (b"[]", b"", "not a JSON object"),
        (b'{"w": ', b"", "not valid JSON"),
        (b"\xff\xfe{}", b"", "not valid JSON"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"w": ' + b"1" * 5000 + b"}", b"", "not valid JSON"),
        (b'{"w": {}, "w": {}}', b"", "'w' twice"),
        (b'{"w": {"dtype": "F32", "dtype": "F16"}}', b"", "'dtype' twice"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__"),
        ({"w": [1]}, b"", "not an object"),
        ({"w": {"dtype": "F32", "shape": [2]}}, b"", "not an object"),
        ({"w": {**F32_PAIR, "x": 1}}, bytes(8), "not an object"),
        ({"w": {**F32_PAIR, "dtype": 3}}, bytes(8), "dtype"),
        ({"w": {**F32_PAIR, "shape": [-2]}}, bytes(8), "shape"),
        ({"w": {**F32_PAIR, "shape": [2.0]}}, bytes(8), "shape"),
        ({"w": {**F32_PAIR, "shape": [True, 2]}}, bytes(8), "shape"),
        ({"w": {**F32_PAIR, "shape": 2}}, bytes(8), "shape"),
        ({"w": {**F32_PAIR, "shape": [1] * 33}}, bytes(4), "shape"),
        ({"w": {**F32_PAIR, "shape": [2**63]}}, bytes(8), "shape"),
        # Overflows 64 bits to 2.
        ({"w": {**F32_PAIR, "shape": [2**62 + 1, 4, 2**62, 2]}}, bytes(8), "does not take"),
        ({"w": {**F32_PAIR, "shape": [3]}}, bytes(8), "F32 of shape [3] does not take 8 bytes"),
        ({"w": {**F32_PAIR, "data_offsets": [8, 0]}}, bytes(8), "data_offsets"),
        ({"w": {**F32_PAIR, "data_offsets": [0, 8, 8]}}, bytes(8), "data_offsets"),
        ({"w": {**F32_PAIR, "data_offsets": [-8, 0]}}, bytes(8), "data_offsets"),
        ({"w": F32_PAIR}, bytes(7), "truncated"),
        ({"w": F32_PAIR}, bytes(9), "the tensors end at byte"),
        ({"w": tensor_entry("F32", [1], 4, 8)}, bytes(8), "gap"),
        ({"v": F32_PAIR, "w": tensor_entry("F32", [2], 4, 12)}, bytes(12), "overlaps"),
        (b'{"\\ud800": {}}', b"", "not valid Unicode"),
    ],
)
def test_corrupt_headers(
    tmp_path: Path, header: bytes | dict[str, object], data: bytes, message: str
) -> None:
    assert message in error_of(tmp_path, safetensors_bytes(header, data))


def test_lengths_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    assert "truncated" in error_of(tmp_path, b"1234567")
    assert "truncated" in error_of(tmp_path, struct.pack("<Q", 3) + b"{}")
    assert "not a safetensors file" in error_of(tmp_path, b"\xff" * 64)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    os.truncate(path, 2 * MAX_HEADER_BYTES)  # sparse: takes no room
    with pytest.raises(ModelFileError, match="header would have"):
        open_safetensors(path)


class TestIndex:
    def write(self, path: Path, weight_map: object) -> None:
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))

    def shards(self, path: Path) -> dict[str, str]:
        for number, name in enumerate("ab"):
            header = {name: F32_PAIR, "both": tensor_entry("F32", [1], 8, 12)}
            content = safetensors_bytes(header, bytes([number]) * 12)
            (path / f"m-0000{number + 1}-of-00002.safetensors").write_bytes(content)
        return {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}

    def test_tensors_come_from_the_file_that_the_index_names(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map | {"both": weight_map["b"]})
        with open_safetensors(tmp_path) as source:
            assert list(source.names()) == ["a", "b", "both"]
            assert read_whole(source, "a") == bytes(8)
            assert read_whole(source, "both") == b"\1" * 4

    def test_links_as_the_hub_cache_makes_them(self, tmp_path: Path) -> None:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "snapshot").mkdir()
        weight_map = self.shards(tmp_path / "blobs")
        for file_name in weight_map.values():
            (tmp_path / "snapshot" / file_name).symlink_to(tmp_path / "blobs" / file_name)
        self.write(tmp_path / "snapshot", weight_map)
        with open_safetensors(tmp_path / "snapshot") as source:
            assert list(source.names()) == ["a", "b"]

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map)
        (tmp_path / weight_map["b"]).unlink()
        with pytest.raises(ModelFileError, match=r"m-00002-of-00002.safetensors, .* is missing"):
            open_safetensors(tmp_path)

    def test_a_tensor_that_is_not_where_the_index_says(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map | {"a": weight_map["b"]})
        with pytest.raises(ModelFileError, match=r"'a' is not in m-00002-of-00002.safetensors"):
            open_safetensors(tmp_path)

    @pytest.mark.parametrize("name", ["/etc/passwd", "../m", "x/../../m", "", "..", "a\0b"])
    def test_no_file_outside_the_model_is_opened(self, tmp_path: Path, name: str) -> None:
        self.write(tmp_path, {"a": name})
        with pytest.raises(ModelFileError, match="outside the model"):
            open_safetensors(tmp_path)

    @pytest.mark.parametrize("weight_map", [None, [], {"a": 1}, "x"])
    def test_a_map_that_is_none(self, tmp_path: Path, weight_map: object) -> None:
        self.write(tmp_path, weight_map)
        with pytest.raises(ModelFileError, match="weight_map"):
            open_safetensors(tmp_path)

    def test_no_descriptor_is_left_open_by_a_refusal(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map | {"c": weight_map["a"]})
        before = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(ModelFileError, match="'c' is not in"):
            open_safetensors(tmp_path)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_directory_with_one_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(safetensors_bytes({"w": F32_PAIR}, bytes(8)))
    with open_safetensors(tmp_path) as source:
        assert list(source.names()) == ["w"]


def test_directories_without_a_clear_answer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        open_safetensors(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes({}))
    with pytest.raises(ModelNotFoundError, match=r"2 \.safetensors files and no index"):
        open_safetensors(tmp_path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_safetensors(tmp_path / "absent.safetensors")
