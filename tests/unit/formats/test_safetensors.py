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
from support.formats.safetensors_bytes import safetensors_bytes, tensor_entry
from support.models.tensor_sources import read_in_pieces, read_whole
from support.process_facts import num_descriptors

from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats import safetensors as safetensors_header
from potluck.formats import source as source_module
from potluck.formats.safetensors import (
    MAX_FILES,
    MAX_HEADER_BYTES,
    MAX_METADATA_ENTRIES,
    open_safetensors,
)
from potluck.formats.source import MAX_TENSORS
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


def test_any_number_of_unknown_types_makes_one_short_message(tmp_path: Path) -> None:
    header = {f"t{n}": tensor_entry("X" * 90 + str(n), [0], 0, 0) for n in range(100)}
    with (
        open_safetensors(write(tmp_path, safetensors_bytes(header))) as source,
        pytest.raises(UnsupportedModelError) as caught,
    ):
        source.info("t7")
    assert len(caught.value.message) < 2000
    assert len(caught.value.missing) == 10


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
        with pytest.raises(ModelFileError, match=r"tensor 'w': it shrank from \d+ to \d+ bytes"):
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
        (b"[" * 100_000, b"", "not a JSON object"),
        (b'{"w": ' + b"[" * 100_000, b"", "not valid JSON"),
        (b'{"w": ' + b'{"a":' * 100_000, b"", "not valid JSON"),
        (b'{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 0]}}', b"", "not valid JSON"),
        (b'{"__metadata__": {}, "__metadata__": {}}', b"", "'__metadata__' twice"),
        (b'{"w": [' + b"1," * 40_000 + b"1]}", b"", "not valid JSON"),
        (b'{"w"  "F32"}', b"", "not valid JSON"),
        (b"{w: 1}", b"", "not valid JSON"),
        (b"{} {}", b"", "not valid JSON"),
        (b'{"w": ' + b"1" * 5000 + b"}", b"", "not valid JSON"),
        (
            b'{"w": %s, "w": %s}' % ((b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',) * 2),
            b"",
            "two tensors named 'w'",
        ),
        (b'{"w": {"dtype": "F32", "dtype": "F16"}}', b"", "'dtype' twice"),
        ({"__metadata__": {"a": 1}}, b"", "__metadata__ is not an object of strings"),
        ({"__metadata__": ["a"]}, b"", "__metadata__ is not a JSON object"),
        (b'{"__metadata__": {"a": "\x01"}}', b"", "not valid JSON"),
        (b'{"__metadata__": {"a": "\\x"}}', b"", "not valid JSON"),
        (b'{"__metadata__": {"a": "', b"", "not valid JSON"),
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
        ({"w": {**F32_PAIR, "shape": [2**63 - 1] * 32}}, bytes(8), "…] does not take 8 bytes"),
        ({"w": {**F32_PAIR, "data_offsets": [8, 0]}}, bytes(8), "data_offsets"),
        ({"w": {**F32_PAIR, "data_offsets": [0, 8, 8]}}, bytes(8), "data_offsets"),
        ({"w": {**F32_PAIR, "data_offsets": [-8, 0]}}, bytes(8), "data_offsets"),
        ({"w": F32_PAIR}, bytes(7), "truncated"),
        ({"w": F32_PAIR}, bytes(9), "the tensors end at byte"),
        ({"w": tensor_entry("F32", [1], 4, 8)}, bytes(8), "gap"),
        ({"v": F32_PAIR, "w": tensor_entry("F32", [2], 4, 12)}, bytes(12), "overlaps"),
        (b'{"\\ud800": {}}', b"", "is not a valid tensor name"),
        (b'{"a\\u0000b": {}}', b"", "is not a valid tensor name"),
        ({"": F32_PAIR}, bytes(8), "is not a valid tensor name"),
        ({"w" * 256: F32_PAIR}, bytes(8), "(it has 256 characters)"),
    ],
)
def test_corrupt_headers(
    tmp_path: Path, header: bytes | dict[str, object], data: bytes, message: str
) -> None:
    assert message in error_of(tmp_path, safetensors_bytes(header, data))


@pytest.mark.slow
def test_a_header_as_long_as_the_format_allows(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = json.dumps({"w": tensor_entry("F32", [2], 0, 8)}).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 100_000_000) + header)
        num_spaces = 100_000_000 - len(header)
        for _ in range(num_spaces // 2**20):
            file.write(b" " * 2**20)
        file.write(b" " * (num_spaces % 2**20) + bytes(8))
    with open_safetensors(path) as source:
        assert list(source.names()) == ["w"]


def test_lengths_are_bounded_before_anything_is_read(tmp_path: Path) -> None:
    assert "truncated" in error_of(tmp_path, b"1234567")
    assert "truncated" in error_of(tmp_path, struct.pack("<Q", 3) + b"{}")
    assert "not a safetensors file" in error_of(tmp_path, b"\xff" * 64)
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", MAX_HEADER_BYTES + 1))
    os.truncate(path, 2 * MAX_HEADER_BYTES)  # sparse: takes no room
    with pytest.raises(ModelFileError, match="its header has"):
        open_safetensors(path)


@pytest.mark.slow
def test_the_headers_of_other_writers(tmp_path: Path) -> None:
    """Any order of keys, any space, escapes, and metadata longer than what is read at once."""
    entry = '{"data_offsets" : [ 0,8 ] ,\n"shape":[2], "dtype":"F\\u0033\\u0032"}'
    for size in (*range(32_700, 32_780), 200_000):
        metadata = json.dumps(
            {"é": "é" * (size // 2), 'a"': '"' * 9, "": ""}, ensure_ascii=size % 2 > 0
        )
        header = f' {{"__metadata__": {metadata}, "w" :{entry} }}\t'.encode()
        with open_safetensors(write(tmp_path, safetensors_bytes(header, bytes(8)))) as source:
            assert source.info("w").shape == (2,)


def test_an_entry_at_every_place_across_the_edge_of_a_window(tmp_path: Path) -> None:
    for size in range(32_700, 32_780):
        header = b'{"a": ' + json.dumps(F32_PAIR).encode() + b"," + b" " * (size - 60)
        header += b'"b":{"dtype":"F32","shape":[10],"data_offsets":[8,48]}}'
        with open_safetensors(write(tmp_path, safetensors_bytes(header, bytes(48)))) as source:
            assert source.info("b").shape == (10,), size


@pytest.mark.slow
def test_counts_that_no_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hundredth of the tensors, which are 200,000."""
    most = MAX_TENSORS // 100
    monkeypatch.setattr(source_module, "MAX_TENSORS", most)
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", most)

    def header(*lists: str) -> bytes:
        return ("{" + ",".join(lists) + "}").encode()

    many = ",".join(f'"{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in range(most))
    with open_safetensors(write(tmp_path, safetensors_bytes(header(many)))) as source:
        assert len(source.tensors) == most
    one_more = '"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    assert f"more than {most}" in error_of(tmp_path, safetensors_bytes(header(many, one_more)))
    texts = ",".join(['"":""'] * (MAX_METADATA_ENTRIES + 1))
    message = error_of(tmp_path, safetensors_bytes(header(f'"__metadata__":{{{texts}}}')))
    assert f"__metadata__ has more than {MAX_METADATA_ENTRIES} entries" in message


def test_a_directory_whose_file_is_a_broken_link(tmp_path: Path) -> None:
    link = tmp_path / "model.safetensors"
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors: no such file"):
        open_safetensors(tmp_path)
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(ModelFileError, match="Too many levels of symbolic links"):
        open_safetensors(tmp_path)


class TestIndex:
    def write(self, path: Path, weight_map: object) -> None:
        index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))

    def shards(self, path: Path) -> dict[str, str]:
        for number, name in enumerate("ab"):
            header = {name: F32_PAIR, f"{name}2": tensor_entry("F32", [1], 8, 12)}
            content = safetensors_bytes(header, bytes([number]) * 12)
            (path / f"m-0000{number + 1}-of-00002.safetensors").write_bytes(content)
        return {"a": "m-00001-of-00002.safetensors", "b": "m-00002-of-00002.safetensors"}

    def test_tensors_come_from_the_file_that_the_index_names(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map)
        with open_safetensors(tmp_path) as source:
            assert read_whole(source, "a") == bytes(8)
            assert read_whole(source, "b") == b"\1" * 8

    def test_tensors_that_the_index_does_not_know_are_listed(self, tmp_path: Path) -> None:
        self.write(tmp_path, self.shards(tmp_path))
        with open_safetensors(tmp_path) as source:
            assert list(source.names()) == ["a", "a2", "b", "b2"]

    def test_a_tensor_that_lies_in_two_files(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        for name in weight_map.values():
            (tmp_path / name).write_bytes(safetensors_bytes({"w": F32_PAIR}, bytes(8)))
        self.write(tmp_path, {"w": weight_map["a"], "v": weight_map["b"]})
        with pytest.raises(ModelFileError, match=r"m-00002.*it has 'w', which .* lists for"):
            open_safetensors(tmp_path)

    @pytest.mark.parametrize(
        ("index", "message"),
        [
            ('{"weight_map": {"a": "m", "a": "m"}}', "weight_map has 'a' twice"),
            ('{"weight_map": {"a": "m"}, "weight_map": {"a": "m"}}', "'weight_map' twice"),
            ('{"metadata": {"a": 1, "a": 2}, "weight_map": {"a": "m"}}', "'a' twice"),
            ('{"weight_map": {"a\\n": "m"}}', "is not a valid tensor name"),
            ('{"weight_map": {"a": "\\ud800"}}', "not valid Unicode"),
            ('{"weight_map": {"a": "m"}', "the index is not valid JSON"),
            ("[]", "the index is not a JSON object"),
            ('{"metadata": ' + "[" * 100_000, "the index is not valid JSON"),
        ],
    )
    def test_a_broken_index(self, tmp_path: Path, index: str, message: str) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(index)
        with pytest.raises(ModelFileError, match=message) as caught:
            open_safetensors(tmp_path)
        assert "index.json" in caught.value.message

    def test_more_files_than_any_model_has(self, tmp_path: Path) -> None:
        self.write(tmp_path, {f"t{number}": f"m{number}" for number in range(MAX_FILES + 1)})
        with pytest.raises(ModelFileError, match=f"weight_map names more than {MAX_FILES} files"):
            open_safetensors(tmp_path)

    def test_one_descriptor_for_any_number_of_files(self, tmp_path: Path) -> None:
        weight_map = {}
        for number in range(50):
            weight_map[f"t{number}"] = name = f"m{number}.safetensors"
            content = safetensors_bytes({f"t{number}": F32_PAIR}, bytes([number]) * 8)
            (tmp_path / name).write_bytes(content)
        self.write(tmp_path, weight_map)
        before = num_descriptors()
        with open_safetensors(tmp_path) as source:
            assert num_descriptors() == before
            for number in [*range(50), 0, 49, 0]:
                assert read_whole(source, f"t{number}") == bytes([number]) * 8
                assert num_descriptors() == before + 1
            source.check_unchanged()
        assert num_descriptors() == before

    @pytest.mark.parametrize("which", ["a", "b"])
    def test_a_file_replaced_between_two_reads(self, tmp_path: Path, which: str) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map)
        with open_safetensors(tmp_path) as source:
            read_whole(source, "a")
            read_whole(source, "b")
            path = tmp_path / weight_map[which]
            copy = tmp_path / "copy"
            copy.write_bytes(path.read_bytes())
            copy.replace(path)
            with pytest.raises(ModelFileError, match="changed while it was read") as caught:
                source.check_unchanged()
            assert caught.value.path == str(path)
            # The last one read is open still, and what was opened does not change.
            if which == "a":
                with pytest.raises(ModelFileError, match="tensor 'a': the file changed while"):
                    read_whole(source, "a")

    def test_links_as_the_hub_cache_makes_them(self, tmp_path: Path) -> None:
        (tmp_path / "blobs").mkdir()
        (tmp_path / "snapshot").mkdir()
        weight_map = self.shards(tmp_path / "blobs")
        for file_name in weight_map.values():
            (tmp_path / "snapshot" / file_name).symlink_to(tmp_path / "blobs" / file_name)
        self.write(tmp_path / "snapshot", weight_map)
        with open_safetensors(tmp_path / "snapshot") as source:
            assert {"a", "b"} <= set(source.names())

    def test_a_missing_shard_is_named(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map)
        (tmp_path / weight_map["b"]).unlink()
        with pytest.raises(ModelFileError, match=r"m-00002-of-00002.safetensors, .* is missing"):
            open_safetensors(tmp_path)

    def test_a_tensor_that_is_not_where_the_index_says(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map | {"a": weight_map["b"]})
        with pytest.raises(ModelFileError, match=r"m-00002.*it has no 'a', which .* lists"):
            open_safetensors(tmp_path)

    @pytest.mark.parametrize("name", ["/etc/passwd", "../m", "x/../../m", "", "..", "a\0b"])
    def test_no_file_outside_the_model_is_opened(self, tmp_path: Path, name: str) -> None:
        self.write(tmp_path, {"a": name})
        with pytest.raises(ModelFileError, match="outside the model"):
            open_safetensors(tmp_path)

    @pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}, {"a": ["m"]}, "x"])
    def test_a_map_that_is_none(self, tmp_path: Path, weight_map: object) -> None:
        self.write(tmp_path, weight_map)
        with pytest.raises(ModelFileError, match="weight_map"):
            open_safetensors(tmp_path)

    def test_no_descriptor_is_left_open_by_a_refusal(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map | {"c": weight_map["a"]})
        before = num_descriptors()
        with pytest.raises(ModelFileError, match="it has no 'c'"):
            open_safetensors(tmp_path)
        assert num_descriptors() == before

    def test_a_file_of_another_model_is_blamed(self, tmp_path: Path) -> None:
        weight_map = self.shards(tmp_path)
        self.write(tmp_path, weight_map)
        wrong = tmp_path / weight_map["b"]
        wrong.write_bytes(safetensors_bytes({"x": F32_PAIR}, bytes(8)))
        with pytest.raises(ModelFileError, match="it has no 'b', which model") as caught:
            open_safetensors(tmp_path)
        assert caught.value.path == str(wrong)
        wrong.write_bytes(safetensors_bytes({"a": F32_PAIR}, bytes(8)))
        with pytest.raises(ModelFileError, match=r"it has 'a', which .* lists for") as caught:
            open_safetensors(tmp_path)
        assert caught.value.path == str(wrong)
        assert "belongs to another model" in caught.value.hint


def test_a_directory_with_one_file_of_any_name(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(safetensors_bytes({"w": F32_PAIR}, bytes(8)))
    with open_safetensors(tmp_path) as source:
        assert list(source.names()) == ["w"]


def test_directories_without_a_clear_answer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        open_safetensors(tmp_path)
    for name in "ab":
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors_bytes({}))
    with pytest.raises(ModelNotFoundError, match=r"2 \.safetensors files but no index"):
        open_safetensors(tmp_path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_safetensors(tmp_path / "absent.safetensors")
