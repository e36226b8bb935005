"""The dynamic segment: what the linker is told by tags, and the names that its entries point at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from potluck.errors import ElfError
from potluck.portability.elf_image import PT_DYNAMIC, ElfImage

DT_NEEDED = 1
DT_PLTRELSZ = 2
DT_HASH = 4
DT_STRTAB = 5
DT_SYMTAB = 6
DT_RELA = 7
DT_RELASZ = 8
DT_STRSZ = 10
DT_SYMENT = 11
DT_SONAME = 14
DT_RPATH = 15
DT_REL = 17
DT_RELSZ = 18
DT_PLTREL = 20
DT_JMPREL = 23
DT_RUNPATH = 29
DT_FLAGS = 30
DT_GNU_HASH = 0x6FFFFEF5
DT_VERSYM = 0x6FFFFFF0
DT_VERDEF = 0x6FFFFFFC
DT_VERNEED = 0x6FFFFFFE

DF_STATIC_TLS = 0x10

_DT_NULL = 0
_MAX_ENTRIES = 2**16
"""Of the dynamic segment; most files have 30, one that needs a thousand libraries has 1,030."""

MAX_NAME_BYTES = 2**27
"""Of all names of a file together. libtorch_cpu.so of PyTorch 2.13 has 5 MB; names of which each is
the tail of another could otherwise be made to take the square of the file's size."""


class StringTable:
    """Names by their offset. Bytes that are not UTF-8 are written as backslash escapes."""

    def __init__(self, data: bytes) -> None:
        if len(data) > MAX_NAME_BYTES:
            raise ElfError(f"the table of names has {len(data)} bytes")
        self._data = data
        self._bytes_left = MAX_NAME_BYTES

    def text(self, offset: int) -> str:
        """The name at ``offset``. Raises ``ElfError`` where there is none."""
        if not 0 <= offset < len(self._data) or (end := self._data.find(b"\0", offset)) < 0:
            raise ElfError(f"the table of names has no name at {offset}")
        self._take(end - offset)
        return _decoded(self._data[offset:end])

    def texts(self, offsets: npt.NDArray[np.int64]) -> list[str]:
        """The names at ``offsets``. Raises ``ElfError`` where there is none."""
        if not offsets.size:
            return []
        data = np.frombuffer(self._data, np.uint8)
        all_ends = np.flatnonzero(data == 0)
        index = np.searchsorted(all_ends, offsets)
        if not all_ends.size or int(index.max()) == all_ends.size:
            raise ElfError("the table of names ends before some symbol's name")
        ends = all_ends[index]
        self._take(int((ends - offsets).sum()))
        spans = zip(offsets.tolist(), ends.tolist(), strict=True)
        if self._data.isascii():
            text = self._data.decode("ascii")
            return [text[start:end] for start, end in spans]
        return [_decoded(self._data[start:end]) for start, end in spans]

    def _take(self, num_bytes: int) -> None:
        self._bytes_left -= num_bytes
        if self._bytes_left < 0:
            raise ElfError(f"its names take more than {MAX_NAME_BYTES} bytes")


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dynamic:
    """The entries by tag (the last one counts, as for the linker), the offsets of the names of
    needed libraries in their order, and the names. All empty in what is linked statically.
    """

    entries: Mapping[int, int]
    needed: tuple[int, ...]
    strings: StringTable

    def text(self, tag: int) -> str:
        """The name that the entry points at, empty without one."""
        offset = self.entries.get(tag)
        return "" if offset is None else self.strings.text(offset)

    def address(self, tag: int, what: str) -> int:
        """The entry's value. Raises ``ElfError`` without one."""
        if tag not in self.entries:
            raise ElfError(f"it does not say where {what} is")
        return self.entries[tag]


def read_dynamic(image: ElfImage) -> Dynamic:
    """The dynamic segment and its table of names. Raises ``ElfError`` where they are broken."""
    segments = image.of_type(PT_DYNAMIC)
    if not len(segments):
        return Dynamic(entries=MappingProxyType({}), needed=(), strings=StringTable(b""))
    record = image.header.record(tag="address", value="address")
    table = image.table(
        record,
        int(segments[0]["offset"]),
        int(segments[0]["filesz"]) // record.itemsize,
        "the dynamic segment",
    )
    nulls = np.flatnonzero(table["tag"] == _DT_NULL)
    if len(nulls):
        table = table[: nulls[0]]
    if len(table) > _MAX_ENTRIES:
        raise ElfError(f"the dynamic segment has {len(table)} entries")
    tags, values = table["tag"].tolist(), table["value"].tolist()
    entries = dict(zip(tags, values, strict=True))
    names = b""
    if DT_STRTAB in entries:
        names = image.loaded(entries[DT_STRTAB], entries.get(DT_STRSZ, 0), "the table of names")
    return Dynamic(
        entries=MappingProxyType(entries),
        needed=tuple(value for tag, value in zip(tags, values, strict=True) if tag == DT_NEEDED),
        strings=StringTable(names),
    )
