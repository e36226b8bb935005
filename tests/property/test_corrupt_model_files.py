"""Whatever bytes a file has, it is read or refused in one of two ways, and in bounded memory."""

from __future__ import annotations

import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.formats import gguf_bytes as gb
from support.formats.safetensors_bytes import safetensors_bytes, tensor_entry
from support.models.tensor_sources import read_whole

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats.gguf import open_gguf
from potluck.formats.safetensors import open_safetensors
from potluck.formats.source import FileTensorSource

# Several times the windows of text or bytes that are held, and many times what these files need.
MOST_BYTES = 2**20

SAFETENSORS = safetensors_bytes(
    {
        "__metadata__": {"format": "pt"},
        "a": tensor_entry("F32", [2, 3], 0, 24),
        "b": tensor_entry("BF16", [4], 24, 32),
        "c": tensor_entry("I64", [1], 32, 40),
    },
    bytes(range(40)),
)

GGUF = gb.Gguf(
    entries=[
        gb.entry("general.architecture", 8, gb.text("llama")),
        gb.entry("general.alignment", 4, gb.u32(32)),
        gb.entry("f", 6, struct.pack("<f", 1.5)),
        gb.entry("b", 7, b"\1"),
        gb.entry("texts", 9, gb.array(8, 2, gb.text("a") + gb.text("bc"))),
        gb.entry("numbers", 9, gb.array(5, 3, bytes(12))),
        gb.entry("flags", 9, gb.array(7, 2, b"\0\1")),
    ],
    tensors=[
        gb.Tensor(name="w", dimensions=(32, 2), type_number=8),
        gb.Tensor(name="v", dimensions=(4,), offset=96),
    ],
    data=bytes(range(96)) + bytes(16),
).build()

FORMATS = [
    pytest.param(SAFETENSORS, open_safetensors, id="safetensors"),
    pytest.param(GGUF, open_gguf, id="gguf"),
]
Opener = Callable[[Path], FileTensorSource]


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST_BYTES, f"threads: {[thread.name for thread in threading.enumerate()]}"


def is_read(path: Path, content: bytes, open_source: Opener) -> bool:
    """Whether the file is opened; all its usable tensors must then be read without an error."""
    path.write_bytes(content)
    try:
        source = open_source(path)
    except (ModelFileError, UnsupportedModelError):
        return False
    with source:
        for name in source.names():
            if source.tensors[name].format is not None:
                read_whole(source, name)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("content", "open_source"), FORMATS)
@pytest.mark.usefixtures("bounded_memory")
def test_the_whole_file_is_read_and_no_beginning_of_it(
    tmp_path: Path, content: bytes, open_source: Opener
) -> None:
    path = tmp_path / "m"
    assert is_read(path, content, open_source)
    assert not any(is_read(path, content[:size], open_source) for size in range(len(content)))


@pytest.mark.slow
@pytest.mark.parametrize(("content", "open_source"), FORMATS)
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
@pytest.mark.usefixtures("bounded_memory")
def test_every_byte_changed(tmp_path: Path, content: bytes, open_source: Opener, mask: int) -> None:
    num_read = 0
    for index in range(len(content)):
        changed = bytearray(content)
        changed[index] ^= mask
        num_read += is_read(tmp_path / "m", bytes(changed), open_source)
    # Letters of names and bytes of tensors can change; most of a header cannot.
    assert 0 < num_read < len(content) * 3 / 4


@pytest.mark.slow
@pytest.mark.parametrize("content", [SAFETENSORS, GGUF], ids=["safetensors", "gguf"])
@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stretches_replaced(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(content)))
    length = data.draw(st.integers(0, 16))
    number = data.draw(st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**64 - 1]))
    stretch = data.draw(st.one_of(st.just(struct.pack("<Q", number)), st.binary(max_size=16)))
    changed = content[:start] + stretch + content[start + length :]
    is_read(tmp_path / "m", changed, open_gguf if content is GGUF else open_safetensors)
