"""What may be asked of a reader of headers, whatever bytes it is given."""

from __future__ import annotations

import re
import time
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from support.formats.header_mutations import Kind

from potluck.errors import ModelFileError, UnsupportedModelError
from potluck.formats import gguf, safetensors
from potluck.formats.gguf_metadata import MetadataArray
from potluck.formats.source import FileTensorSource
from potluck.models.registry import config_from_gguf

ALLOWED_BYTES = 2 * 2**20
"""Beyond the file's own size: windows of 64 KiB, and what the worst JSON in one parses to."""

MOST_SECONDS = 1.0
"""Of CPU time, tracing of memory included; a case that takes longer is a hang."""

PATH = "file"


class MemoryFile:
    """Bytes as a file."""

    def __init__(self, data: bytes) -> None:
        self.path = PATH
        self.size = len(data)
        self._data = data

    def read_into(self, offset: int, out: memoryview) -> None:
        data = memoryview(self._data)[offset : offset + len(out)]
        if len(data) < len(out):
            raise ModelFileError(self.path, f"truncated at {offset}")
        out[:] = data

    def release(self) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``refusal`` is the message without its names and numbers, or None for a file that was read.

    ``problem`` is what the reader should not have done, or nothing.
    """

    refusal: str | None
    extra_bytes: int
    seconds: float
    problem: str


def run_case(kind: Kind, content: bytes) -> Outcome:
    """Read ``content`` and all that can be had of it. Memory must be traced.

    Exceptions that are no refusals are the caller's: they are crashes.
    """
    file = MemoryFile(content)
    tracemalloc.reset_peak()
    held = tracemalloc.get_traced_memory()[0]
    start = time.thread_time()
    message = None
    try:
        _USES[kind](file)
    except (ModelFileError, UnsupportedModelError) as error:
        message = error.message
    seconds = time.thread_time() - start
    extra_bytes = tracemalloc.get_traced_memory()[1] - held - len(content)
    problem = ""
    if extra_bytes > ALLOWED_BYTES:
        problem = f"{extra_bytes} bytes beyond the file's {len(content)}"
    elif seconds > MOST_SECONDS:
        problem = f"{seconds:.1f} s"
    elif message is not None and not (message.isprintable() and len(message) < 500):
        problem = f"not one short line: {message[:1000]!r}"
    refusal = None if message is None else re.sub(r"'.*'|\".*\"|[\[(].*[\])]|-?\d+", "…", message)
    return Outcome(refusal=refusal, extra_bytes=extra_bytes, seconds=seconds, problem=problem)


def _open_safetensors(file: MemoryFile) -> FileTensorSource:
    return FileTensorSource(safetensors.read_header(file), ())


def _open_gguf(file: MemoryFile) -> tuple[gguf.GgufHeader, FileTensorSource]:
    header = gguf.read_header(file)
    return header, FileTensorSource(header.tensors, ())


HEADER_READERS: Mapping[Kind, Callable[[MemoryFile], object]] = {
    Kind.SAFETENSORS: _open_safetensors,
    Kind.INDEX: safetensors.read_weight_map,
    Kind.GGUF: _open_gguf,
}
"""What is done when a model is opened; what is returned is what is then held."""


def _use_safetensors(file: MemoryFile) -> None:
    _read_tensors(_open_safetensors(file))


def _use_index(file: MemoryFile) -> None:
    safetensors.read_weight_map(file)


def _use_gguf(file: MemoryFile) -> None:
    header, source = _open_gguf(file)
    _read_tensors(source)
    for value in header.metadata.values():
        if isinstance(value, MetadataArray):
            assert sum(1 for _ in value) == len(value)
    config_from_gguf(header.metadata, source, path=file.path)


def _read_tensors(source: FileTensorSource) -> None:
    """All bytes of all tensors that can be used, row by row."""
    for name, tensor in source.tensors.items():
        if tensor.format is None:
            continue
        info = source.info(name)
        assert info.num_bytes == tensor.num_bytes
        if tensor.num_bytes == 0:
            continue
        row = memoryview(bytearray(info.row_bytes))
        for number in range(info.num_rows):
            source.read_rows(name, number, number + 1, row)


_USES: Mapping[Kind, Callable[[MemoryFile], None]] = {
    Kind.SAFETENSORS: _use_safetensors,
    Kind.INDEX: _use_index,
    Kind.GGUF: _use_gguf,
}
