"""GGUF files put together byte by byte, well or ill, from the specification alone."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, type_number: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_number) + value


def array(type_number: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", type_number, count) + values


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u16(value: int) -> bytes:
    return struct.pack("<H", value)


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """``dimensions`` as they stand in the file: the one that lies together first."""

    name: str | bytes = "t"
    dimensions: Sequence[int] = (4,)
    type_number: int = 0
    offset: int = 0

    def header(self) -> bytes:
        return (
            text(self.name)
            + struct.pack(f"<I{len(self.dimensions)}Q", len(self.dimensions), *self.dimensions)
            + struct.pack("<IQ", self.type_number, self.offset)
        )


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """A file; counts may be made to lie."""

    entries: Sequence[bytes] = ()
    tensors: Sequence[Tensor] = ()
    data: bytes = b""
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: bytes = field(default_factory=lambda: u32(3))
    num_tensors: int | None = None
    num_entries: int | None = None

    def header(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_entries = len(self.entries) if self.num_entries is None else self.num_entries
        return b"".join(
            (
                self.magic,
                self.version,
                struct.pack("<QQ", num_tensors, num_entries),
                *self.entries,
                *(tensor.header() for tensor in self.tensors),
            )
        )

    def build(self) -> bytes:
        header = self.header()
        return header + bytes(-len(header) % self.alignment) + self.data
