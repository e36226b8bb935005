from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.quants import quantize
from numpy.typing import NDArray
from support.formats import gguf_bytes as gb
from support.models.tensor_sources import read_in_pieces, read_whole
from support.process_facts import num_descriptors

from potluck.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from potluck.formats.gguf import MAX_HEADER_TENSORS, open_gguf
from potluck.formats.gguf_metadata import MetadataArray
from potluck.types.tensor import TensorFormat, TensorInfo


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    return path


def error_of(tmp_path: Path, content: bytes) -> str:
    with pytest.raises(ModelFileError) as caught:
        open_gguf(write(tmp_path, content))
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value.message


def write_with_gguf(
    path: Path, tensors: dict[str, tuple[NDArray[Any], str]], **options: int
) -> None:
    """By the independent writer. Arrays are float32, or raw bytes of a K type."""
    writer = gguf.GGUFWriter(path, "llama", **options)
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b", "é"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    for name, (array, type_name) in tensors.items():
        kind = gguf.GGMLQuantizationType[type_name]
        data = array if array.dtype == np.uint8 else quantize(array, kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def all_formats() -> dict[str, tuple[NDArray[Any], str]]:
    random = np.random.default_rng(1)
    tensors: dict[str, tuple[NDArray[Any], str]] = {}
    for format in TensorFormat:
        rows: NDArray[Any] = random.standard_normal((5, 512), dtype=np.float32)
        if format.block_elements == 256 or format.name.startswith("IQ"):  # gguf cannot make them
            rows = random.integers(0, 256, (5, format.row_bytes(512)), dtype=np.uint8)
        tensors[f"blk.0.{format.label}.weight"] = (rows, format.name)
    tensors["norm.weight"] = (random.standard_normal(96, dtype=np.float32), "F32")
    return tensors


def stored_bytes(array: NDArray[Any], type_name: str) -> bytes:
    if array.dtype == np.uint8:
        return array.tobytes()
    stored: NDArray[Any] = quantize(array, gguf.GGMLQuantizationType[type_name])
    return stored.tobytes()


def test_reads_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    tensors = all_formats()
    write_with_gguf(tmp_path / "m.gguf", tensors)
    with open_gguf(tmp_path / "m.gguf") as source:
        assert source.metadata["general.architecture"] == "llama"
        assert source.metadata["llama.block_count"] == 2
        tokens = source.metadata["tokenizer.ggml.tokens"]
        scores = source.metadata["tokenizer.ggml.scores"]
        assert isinstance(tokens, MetadataArray)
        assert isinstance(scores, MetadataArray)
        assert list(tokens) == ["a", "b", "é"]
        assert list(scores) == [0.5, -1.0, 2.0]
        assert list(source.names()) == list(tensors)
        for name, (array, type_name) in tensors.items():
            shape = (96,) if array.ndim == 1 else (5, 512)
            format = TensorFormat[type_name]
            assert source.info(name) == TensorInfo(name=name, shape=shape, format=format)
            expected = stored_bytes(array, type_name)
            assert read_whole(source, name) == expected
            assert read_in_pieces(source, name, 2) == expected


def test_version_2_is_read_too(tmp_path: Path) -> None:
    file = gb.Gguf(version=gb.u32(2), tensors=[gb.Tensor(dimensions=(2, 3))], data=bytes(range(24)))
    with open_gguf(write(tmp_path, file.build())) as source:
        assert source.info("t").shape == (3, 2)
        assert read_whole(source, "t") == bytes(range(24))


def test_the_alignment_of_the_metadata_is_used(tmp_path: Path) -> None:
    file = gb.Gguf(
        entries=[gb.entry("general.alignment", 4, gb.u32(128))],
        tensors=[gb.Tensor(name="a"), gb.Tensor(name="b", offset=128)],
        alignment=128,
        data=b"a" * 16 + bytes(112) + b"b" * 16,
    )
    with open_gguf(write(tmp_path, file.build())) as source:
        assert read_whole(source, "a") == b"a" * 16
        assert read_whole(source, "b") == b"b" * 16


def test_other_types_are_named_when_needed(tmp_path: Path) -> None:
    file = gb.Gguf(
        tensors=[
            gb.Tensor(name="fine"),
            gb.Tensor(name="iq", dimensions=(256,), type_number=40, offset=32),
            gb.Tensor(name="new", dimensions=(77,), type_number=99, offset=32 + 160),
        ],
        data=bytes(32 + 160 + 40),
    )
    with open_gguf(write(tmp_path, file.build())) as source:
        assert list(source.names()) == ["fine", "iq", "new"]
        assert source.info("fine").num_bytes == 16
        with pytest.raises(UnsupportedModelError) as caught:
            source.info("iq")
        assert "'iq' is stored as NVFP4" in caught.value.message
        assert "F32, NVFP4, type 99" in caught.value.message
        assert caught.value.missing == ("NVFP4", "type 99")
        assert "Q4_K" in caught.value.hint
        with pytest.raises(UnsupportedModelError, match="type 99"):
            source.read_rows("new", 0, 1, memoryview(b""))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (gb.Gguf(magic=b"GGML"), "not a GGUF file"),
        (gb.Gguf(num_tensors=2**60), "tensors"),
        (gb.Gguf(num_tensors=MAX_HEADER_TENSORS), "the list of tensors"),
        (gb.Gguf(num_tensors=1), "truncated"),
        (
            gb.Gguf(tensors=[gb.Tensor(), gb.Tensor(offset=32)], data=bytes(48)),
            "two tensors named 't'",
        ),
        (gb.Gguf(tensors=[gb.Tensor(name=b"\xff")], data=bytes(16)), "not ASCII"),
        (
            gb.Gguf(tensors=[gb.Tensor(name="a\0")], data=bytes(16)),
            "is not a valid tensor name",
        ),
        (gb.Gguf(tensors=[gb.Tensor(name="")], data=bytes(16)), "is not a valid tensor name"),
        (gb.Gguf(tensors=[gb.Tensor(name="t" * 256)], data=bytes(16)), "would have 256 bytes"),
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(1,) * 5)], data=bytes(16)), "5 dimensions"),
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(2**63,))], data=bytes(16)), "invalid shape"),
        # Overflows 64 bits to 16 bytes.
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(2**62 + 4, 1))], data=bytes(16)), "truncated"),
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(2**62, 4))], data=bytes(16)), "truncated"),
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(5,))], data=bytes(16)), "truncated: tensor 't'"),
        (gb.Gguf(tensors=[gb.Tensor(dimensions=(9,))], data=bytes(32)), "truncated: tensor 't'"),
        (gb.Gguf(tensors=[gb.Tensor(offset=32)], data=bytes(48)), "'t' leaves a gap before it"),
        (
            gb.Gguf(
                tensors=[gb.Tensor(name="a", dimensions=(9,)), gb.Tensor(name="b", offset=96)],
                data=bytes(112),
            ),
            "'b' leaves a gap before it",
        ),
        (gb.Gguf(tensors=[gb.Tensor(offset=2**64 - 32)], data=bytes(32)), "gap"),
        (gb.Gguf(tensors=[gb.Tensor(offset=16)], data=bytes(32)), "multiple of 32"),
        (
            gb.Gguf(tensors=[gb.Tensor(dimensions=(33,), type_number=2)], data=bytes(64)),
            "rows of 33 are not a multiple of the Q4_0 block size",
        ),
        (
            gb.Gguf(
                tensors=[gb.Tensor(name="a", dimensions=(9,)), gb.Tensor(name="b", offset=32)],
                data=bytes(64),
            ),
            "'b' overlaps",
        ),
        (gb.Gguf(entries=[gb.entry("general.alignment", 4, gb.u32(0))]), "power of two"),
        (gb.Gguf(entries=[gb.entry("general.alignment", 4, gb.u32(48))]), "power of two"),
        (gb.Gguf(entries=[gb.entry("general.alignment", 6, gb.u32(0))]), "power of two"),
    ],
)
def test_corrupt_files(tmp_path: Path, file: gb.Gguf, message: str) -> None:
    assert message in error_of(tmp_path, file.build())


def test_a_big_endian_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="big-endian"):
        open_gguf(path)


@pytest.mark.parametrize("version", [0, 1, 4])
def test_other_versions_are_refused(tmp_path: Path, version: int) -> None:
    path = write(tmp_path, gb.Gguf(version=gb.u32(version)).build())
    with pytest.raises(UnsupportedModelError, match=f"GGUF version {version}"):
        open_gguf(path)


def test_a_file_truncated_after_opening(tmp_path: Path) -> None:
    path = write(tmp_path, gb.Gguf(tensors=[gb.Tensor()], data=bytes(16)).build())
    with open_gguf(path) as source:
        os.truncate(path, path.stat().st_size - 1)
        with pytest.raises(ModelFileError, match=r"tensor 't': it shrank from \d+ to \d+ bytes"):
            read_whole(source, "t")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_gguf(tmp_path / "absent.gguf")


class TestSplit:
    def parts(self, path: Path) -> list[Path]:
        tensors = {
            f"blk.{number}.weight": (np.full((2, 32), number, np.float32), "Q8_0")
            for number in range(5)
        }
        write_with_gguf(path / "m.gguf", tensors, split_max_tensors=2)
        parts = sorted(path.glob("m-*-of-00003.gguf"))
        assert len(parts) == 3
        return parts

    @pytest.mark.parametrize("given", [0, 1, 2])
    def test_any_part_opens_the_model(self, tmp_path: Path, given: int) -> None:
        with open_gguf(self.parts(tmp_path)[given]) as source:
            assert list(source.names()) == [f"blk.{number}.weight" for number in range(5)]
            assert source.metadata["llama.block_count"] == 2
            for number in range(5):
                # The block's scale is number / 127 as f16; its 32 values are 127, or 0.
                block = struct.pack("<e", number / 127) + bytes([127 if number else 0]) * 32
                assert read_whole(source, f"blk.{number}.weight") == block * 2

    def test_a_missing_part_is_named(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path)
        parts[1].unlink()
        with pytest.raises(ModelFileError, match=r"m-00002-of-00003\.gguf: missing") as caught:
            open_gguf(parts[0])
        assert caught.value.path == str(parts[1])

    def test_a_part_under_another_name(self, tmp_path: Path) -> None:
        renamed = self.parts(tmp_path)[0].rename(tmp_path / "model.gguf")
        with pytest.raises(ModelFileError, match=r"one of 3 parts, .* NAME-00001-of-00003.gguf"):
            open_gguf(renamed)

    def test_parts_in_each_others_place(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path)
        parts[2].write_bytes(parts[1].read_bytes())
        with pytest.raises(ModelFileError, match="does not identify it as part 3"):
            open_gguf(parts[0])

    def test_a_part_of_another_model(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path)
        (tmp_path / "other").mkdir()
        tensors = {
            f"blk.{number}.weight": (np.zeros((2, 32), np.float32), "Q8_0") for number in range(5)
        }
        others = {f"x{name}": each for name, each in [*tensors.items()][:2]} | tensors
        write_with_gguf(tmp_path / "other" / "m.gguf", others, split_max_tensors=3)
        other = tmp_path / "other" / "m-00002-of-00003.gguf"
        parts[1].write_bytes(other.read_bytes())
        with pytest.raises(ModelFileError, match=r"'blk.1.weight' is also in m-00001") as caught:
            open_gguf(parts[0])
        assert caught.value.path == str(parts[1])
        assert "belongs to another model" in caught.value.hint

    def test_parts_with_too_few_tensors(self, tmp_path: Path) -> None:
        for number in range(2):
            entries = [
                gb.entry("split.no", 2, gb.u16(number)),
                gb.entry("split.count", 2, gb.u16(2)),
                gb.entry("split.tensors.count", 5, gb.u32(3)),
            ]
            tensors = [gb.Tensor(name=f"t{number}")]
            path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
            path.write_bytes(gb.Gguf(entries=entries, tensors=tensors, data=bytes(16)).build())
        with pytest.raises(ModelFileError, match="2 tensors, not 3"):
            open_gguf(tmp_path / "m-00001-of-00002.gguf")

    def test_a_count_that_is_none(self, tmp_path: Path) -> None:
        content = gb.Gguf(entries=[gb.entry("split.count", 8, gb.text("two"))]).build()
        assert "'split.count' is not a valid count" in error_of(tmp_path, content)

    def test_no_descriptor_is_left_open_by_a_refusal(self, tmp_path: Path) -> None:
        parts = self.parts(tmp_path)
        parts[2].unlink()
        before = num_descriptors()
        with pytest.raises(ModelFileError):
            open_gguf(parts[0])
        assert num_descriptors() == before
