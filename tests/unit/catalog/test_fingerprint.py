"""Digests of a model: what they see, what they can miss, and how little they read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.formats.gguf_bytes import Gguf, array, entry, text, u32

from potluck.catalog import describe_model, locate_on_disk, open_headers
from potluck.catalog.file_names import TEXT_FILES
from potluck.catalog.fingerprint import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    TARGET_BLOCKS,
    sample_weights,
    text_digest,
    text_stamps,
)
from potluck.catalog.locate import DEMO_DIRECTORY, ModelFiles
from potluck.errors import ModelFileError
from potluck.formats.safetensors import open_safetensors


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_DIRECTORY, tmp_path / "demo"))


def files_of(path: Path) -> ModelFiles:
    files = locate_on_disk(str(path))
    assert files is not None
    return files


def weights_of(path: Path) -> str:
    with closing(open_headers(describe_model(str(path)))) as source:
        return sample_weights(source)


def make(path: Path, **tensors: np.ndarray) -> str:
    save_file(tensors, path)
    with closing(open_safetensors(path)) as source:
        return sample_weights(source)


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def test_the_same_weights_have_the_same_digest_however_they_are_stored(tmp_path: Path) -> None:
    a, b = random(1, 300, 100), random(2, 64)
    one = make(tmp_path / "one.safetensors", a=a, b=b)
    assert make(tmp_path / "again.safetensors", b=b, a=a) == one
    folder = tmp_path / "shards"
    folder.mkdir()
    save_file({"a": a}, folder / "first.safetensors")
    save_file({"b": b, "more": b}, folder / "second.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "first.safetensors", "b": "second.safetensors", '
        '"more": "second.safetensors"}}'
    )
    with closing(open_safetensors(folder)) as source:
        shards = sample_weights(source)
    assert shards == make(tmp_path / "single.safetensors", a=a, b=b, more=b)


def test_another_training_is_seen(demo: Path) -> None:
    """Whatever tensor it is in."""
    before = weights_of(demo)
    path = demo / "model.safetensors"
    stored = path.read_bytes()
    with closing(open_safetensors(path)) as source:
        places = {name: (each.offset, each.num_bytes) for name, each in source.tensors.items()}
    for name in (min(places), max(places), "model.norm.weight"):
        start, num_bytes = places[name]
        other = bytearray(stored)
        other[start : start + num_bytes] = bytes(
            byte ^ 1 for byte in stored[start : start + num_bytes]
        )
        path.write_bytes(other)
        assert weights_of(demo) != before, name
    path.write_bytes(stored)
    assert weights_of(demo) == before


def test_a_tensor_that_fits_into_its_blocks_counts_whole(tmp_path: Path) -> None:
    values = random(1, TARGET_BLOCKS * BLOCK_BYTES // 4)
    before = make(tmp_path / "a.safetensors", a=values)
    for index in (0, values.size // 2, values.size - 1):
        other = values.copy()
        other[index] += 1
        assert make(tmp_path / "b.safetensors", a=other) != before


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file stands for a large model: it has no blocks on the disk to read."""
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, num_bytes: int, offset: int) -> bytes:
        read.append(num_bytes)
        return pread(descriptor, num_bytes, offset)

    monkeypatch.setattr(os, "pread", counted)
    small = {f"t{index}": np.zeros(2, np.float32) for index in range(MAX_BLOCKS + 100)}
    make(tmp_path / "many.safetensors", **small)
    assert len(read) == MAX_BLOCKS
    read.clear()
    make(tmp_path / "few.safetensors", a=random(1, 4, 2**20), b=random(2, 4, 2**20))
    assert read == [BLOCK_BYTES] * TARGET_BLOCKS
    assert MAX_BLOCKS * BLOCK_BYTES == 16 * 2**20


def test_a_file_that_changes_meanwhile_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": random(1, 1000)}, path)
    with closing(open_safetensors(path)) as source:
        os.truncate(path, 2000)
        with pytest.raises(ModelFileError, match="truncated"):
            sample_weights(source)
        os.truncate(path, 10_000)
        with pytest.raises(ModelFileError, match="changed"):
            sample_weights(source)
        path.unlink()
        with pytest.raises(ModelFileError, match="cannot be read"):
            sample_weights(source)


def changes(path: Path) -> Iterator[str]:
    for name in TEXT_FILES:
        file = path / name
        before = file.read_bytes() if file.exists() else None
        file.parent.mkdir(exist_ok=True)
        file.write_bytes((before or b"") + b" ")
        yield name
        if before is None:
            file.unlink()
        else:
            file.write_bytes(before)


def test_every_file_of_the_texts_side_counts(demo: Path) -> None:
    files = files_of(demo)
    before = text_digest(files)
    seen = [(name, text_digest(files), text_stamps(files)) for name in changes(demo)]
    assert [name for name, *_ in seen] == list(TEXT_FILES)
    assert len({before, *(digest for _, digest, _ in seen)}) == len(TEXT_FILES) + 1
    assert len({stamps for *_, stamps in seen}) == len(TEXT_FILES)
    assert text_digest(files) == before
    (demo / "README.md").write_text("other")
    assert text_digest(files) == before


def test_files_are_those_that_the_tokenizer_is_made_of(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ``potluck.text`` asks for is what is compared."""
    from potluck.text import hugging_face, model_directory

    paths: set[str] = set()
    read_text = model_directory.read_text

    def noted(path: Path) -> str | None:
        paths.add(path.relative_to(demo).as_posix())
        return read_text(path)

    for reader in (hugging_face, model_directory):
        monkeypatch.setattr(reader, "read_text", noted)
    hugging_face.load_tokenizer(demo)
    hugging_face.load_chat_template(demo)
    assert {"chat_template.jinja", "generation_config.json"} <= paths
    assert paths <= set(TEXT_FILES)


def gguf_with(path: Path, **changes: bytes) -> str:
    """The text's digest of a GGUF file without tensors."""
    entries = {
        "general.architecture": entry("general.architecture", 8, text("llama")),
        "general.name": entry("general.name", 8, text("a")),
        "general.sampling.temp": entry("general.sampling.temp", 6, u32(0)),
        "tokenizer.chat_template": entry("tokenizer.chat_template", 8, text("{{ x }}")),
        "tokenizer.ggml.tokens": entry("tokenizer.ggml.tokens", 9, array(8, 1, text("t"))),
        **changes,
    }
    path.write_bytes(Gguf(entries=list(entries.values())).build())
    return text_digest(files_of(path))


@pytest.mark.parametrize(
    ("key", "type_number", "value", "counts"),
    [
        ("general.name", 8, text("b"), False),
        ("general.sampling.temp", 6, u32(1), True),
        ("tokenizer.chat_template", 8, text("{{ y }}"), True),
        ("tokenizer.ggml.tokens", 9, array(8, 1, text("u")), True),
        ("tokenizer.ggml.tokens", 9, array(8, 2, text("t") + text("u")), True),
        ("tokenizer.ggml.add_bos_token", 7, b"\1", True),
    ],
)
def test_of_a_gguf_file_what_concerns_texts_counts(
    tmp_path: Path, key: str, type_number: int, value: bytes, counts: bool
) -> None:
    before = gguf_with(tmp_path / "a.gguf")
    after = gguf_with(tmp_path / "b.gguf", **{key: entry(key, type_number, value)})
    assert (after != before) == counts
