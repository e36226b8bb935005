"""Read programs and libraries of a host for its description, in plain Python.

New machines without installed packages describe themselves with it (``cluster.invitations``), so it
imports only the standard library. ``elf.reader`` reads more of each file, and reads the files of
wheels; their results agree.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from potluck.errors import ElfError
from potluck.portability.elf.defined_symbols import DefinedSymbol
from potluck.portability.elf.machines import WIDE_HASH_MACHINES, machine_name
from potluck.portability.hosts.symbol_set import MAX_SYMBOLS

_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 1, 4, 5, 6, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH = 14, 15, 29
_DT_GNU_HASH, _DT_VERSYM, _DT_VERDEF = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC

_ET_EXEC, _ET_DYN = 2, 3
_SHN_ABS = 0xFFF1
_STT_TLS = 6
_FOUND_TYPES = frozenset({0, 1, 2, 5, _STT_TLS, 10})
_FOUND_BINDINGS = frozenset({1, 2, 10})
_VISIBLE = frozenset({0, 3})
_HIDDEN, _INDEX_MASK, _BASE = 0x8000, 0x7FFF, 1

_MAX_SEGMENTS = 1 << 10
_MAX_ENTRIES = 1 << 16
_MAX_VERSIONS = 1 << 15
_MAX_PATH_BYTES = 4096
_MAX_NAME_BYTES = 1 << 27


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryFile:
    """An executable or a shared object, with the fields of ``ElfFile`` that a host's description
    needs.

    ``defined`` is None if it has too many symbols to describe.
    """

    machine: str
    soname: str
    interpreter: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    is_rpath: bool
    version_definitions: tuple[str, ...]
    defined: tuple[DefinedSymbol, ...] | None


def read_library_file(data: bytes | mmap.mmap) -> LibraryFile:
    """Read it from the bytes of the whole file. Raise ``ElfError`` if it is malformed, or of a kind
    that linkers do not load.
    """
    image = _image(data)
    entries, needed = _dynamic(image)
    names = _Names(
        image.loaded(entries[_DT_STRTAB], entries.get(_DT_STRSZ, 0))
        if _DT_STRTAB in entries
        else b""
    )
    is_rpath = _DT_RUNPATH not in entries
    search_path = names.entry(entries, _DT_RPATH if is_rpath else _DT_RUNPATH)
    versions = dict(_versions(image, entries, names))
    return LibraryFile(
        machine=image.machine,
        soname=names.entry(entries, _DT_SONAME),
        interpreter=_interpreter(image),
        needed=tuple(map(names.text, needed)),
        search_path=tuple(path for path in search_path.split(":") if path),
        is_rpath=is_rpath and _DT_RPATH in entries,
        version_definitions=tuple(versions.values()),
        defined=_defined(image, entries, names, versions),
    )


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """A file with its segments; every access is bounds-checked."""

    data: bytes | mmap.mmap
    is_64_bit: bool
    byte_order: str
    machine_number: int
    segments: tuple[_Segment, ...]

    @property
    def machine(self) -> str:
        return machine_name(
            self.machine_number, is_64_bit=self.is_64_bit, byte_order=self.byte_order
        )

    def of_type(self, kind: int) -> Iterator[_Segment]:
        return (each for each in self.segments if each.kind == kind)

    def read(self, offset: int, num_bytes: int) -> bytes:
        return _read(self.data, offset, num_bytes)

    def unpack(self, layout: str, offset: int) -> tuple[Any, ...]:
        form = self.byte_order + layout
        return struct.unpack(form, self.read(offset, struct.calcsize(form)))

    def locate(self, address: int) -> tuple[int, int]:
        """Return the file offset of an address, and how many bytes of its segment follow."""
        for each in self.of_type(_PT_LOAD):
            within = address - each.address
            if 0 <= within < each.num_bytes:
                offset = each.offset + within
                return offset, min(each.num_bytes - within, len(self.data) - offset)
        raise ElfError(f"no part of the file is loaded at {address:#x}")

    def loaded(self, address: int, num_bytes: int) -> bytes:
        if num_bytes == 0:
            return b""
        offset, most_bytes = self.locate(address)
        if num_bytes > most_bytes:
            raise ElfError(f"{num_bytes} bytes at {address:#x} extend beyond their segment")
        return self.read(offset, num_bytes)

    def loaded_rows(self, layout: str, address: int, count: int) -> Iterator[tuple[Any, ...]]:
        form = struct.Struct(self.byte_order + layout)
        return form.iter_unpack(self.loaded(address, count * form.size))


def _read(data: bytes | mmap.mmap, offset: int, num_bytes: int) -> bytes:
    if not 0 <= offset <= offset + num_bytes <= len(data):
        raise ElfError(f"the file ends before {offset + num_bytes:#x}")
    return bytes(data[offset : offset + num_bytes])


def _image(data: bytes | mmap.mmap) -> _Image:
    ident = bytes(data[:16])
    if ident[:4] != b"\x7fELF" or len(ident) < 16 or not {ident[4], ident[5]} <= {1, 2}:
        raise ElfError("this is not an ELF file")
    is_64_bit, byte_order = ident[4] == 2, "<" if ident[5] == 1 else ">"
    form = byte_order + ("HHIQQQIHHH" if is_64_bit else "HHIIIIIHHH")
    header = struct.unpack(form, _read(data, 16, struct.calcsize(form)))
    kind, machine_number, _, _, offset, _, _, _, size, count = header
    if kind not in (_ET_EXEC, _ET_DYN):
        raise ElfError(f"files of type {kind} cannot be loaded")
    # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz …; in 32-bit files the flags come later.
    row = struct.Struct(byte_order + ("IIQQQQQQ" if is_64_bit else "IIIIIIII"))
    if count > _MAX_SEGMENTS or (count and size != row.size):
        raise ElfError("its program headers are invalid")
    segments = []
    for fields in row.iter_unpack(_read(data, offset, count * row.size)):
        place = 2 if is_64_bit else 1
        segments.append(_Segment(fields[0], fields[place], fields[place + 1], fields[place + 3]))
    return _Image(
        data=data,
        is_64_bit=is_64_bit,
        byte_order=byte_order,
        machine_number=machine_number,
        segments=tuple(segments),
    )


class _Names:
    """The string table. Bytes that are not UTF-8 are written as backslash escapes."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._bytes_left = _MAX_NAME_BYTES

    def text(self, offset: int) -> str:
        """Return the name at an offset."""
        end = self._data.find(b"\0", offset) if 0 <= offset < len(self._data) else -1
        self._bytes_left -= end - offset
        if end < 0 or self._bytes_left < 0:
            raise ElfError(f"there is no name at {offset}, or the names are too long")
        return self._data[offset:end].decode("utf-8", "backslashreplace")

    def entry(self, entries: Mapping[int, int], tag: int) -> str:
        """Return the name that an entry refers to; empty without one."""
        return self.text(entries[tag]) if tag in entries else ""


def _dynamic(image: _Image) -> tuple[dict[int, int], list[int]]:
    """Return the dynamic entries by tag (the last one counts), and those for needed libraries."""
    entries: dict[int, int] = {}
    needed: list[int] = []
    row = struct.Struct(image.byte_order + ("QQ" if image.is_64_bit else "II"))
    for segment in image.of_type(_PT_DYNAMIC):
        count = segment.num_bytes // row.size
        data = image.read(segment.offset, count * row.size)
        for number, (tag, value) in enumerate(row.iter_unpack(data)):
            if not tag:
                break
            if number >= _MAX_ENTRIES:
                raise ElfError("the dynamic segment has too many entries")
            entries[tag] = value
            if tag == _DT_NEEDED:
                needed.append(value)
        break
    return entries, needed


def _interpreter(image: _Image) -> str:
    for segment in image.of_type(_PT_INTERP):
        if segment.num_bytes > _MAX_PATH_BYTES:
            raise ElfError("the path of its interpreter is too long")
        path = image.read(segment.offset, segment.num_bytes)
        return path.split(b"\0")[0].decode("utf-8", "backslashreplace")
    return ""


def _versions(
    image: _Image, entries: Mapping[int, int], names: _Names
) -> Iterator[tuple[int, str]]:
    """Return the versions that it defines, by index."""
    if _DT_VERDEF not in entries:
        return
    offset, _ = image.locate(entries[_DT_VERDEF])
    for _ in range(_MAX_VERSIONS):
        _, flags, index, _, _, first, distance = image.unpack("HHHHIII", offset)
        if not flags & _BASE:
            name, _ = image.unpack("II", offset + first)
            yield index & _INDEX_MASK, names.text(name)
        if not distance:
            return
        offset += distance
    raise ElfError("the table of versions does not end")


def _defined(
    image: _Image, entries: Mapping[int, int], names: _Names, versions: Mapping[int, str]
) -> tuple[DefinedSymbol, ...] | None:
    """Return the symbols that a lookup finds: see ``elf.symbols``."""
    first, end = _hashed(image, entries)
    if end - first > MAX_SYMBOLS:
        return None
    if end <= first:
        return ()
    if _DT_SYMTAB not in entries:
        raise ElfError("it does not say where its symbols are")
    layout = "IBBHQQ" if image.is_64_bit else "IIIBBH"
    symbols = image.loaded_rows(layout, entries[_DT_SYMTAB], end)
    indexes = (
        (each for (each,) in image.loaded_rows("H", entries[_DT_VERSYM], end))
        if _DT_VERSYM in entries
        else iter((1,) * end)
    )
    found = []
    for number, (symbol, index) in enumerate(zip(symbols, indexes, strict=True)):
        if number < first:
            continue
        if image.is_64_bit:
            name, info, other, section, value, _ = symbol
        else:
            name, value, _, info, other, section = symbol
        kind = info & 0xF
        if (
            section
            and (value or section == _SHN_ABS or kind == _STT_TLS)
            and kind in _FOUND_TYPES
            and info >> 4 in _FOUND_BINDINGS
            and other & 3 in _VISIBLE
        ):
            found.append(
                DefinedSymbol(
                    name=names.text(name),
                    version=versions.get(index & _INDEX_MASK, ""),
                    is_default=not index & _HIDDEN,
                )
            )
    return tuple(found)


def _hashed(image: _Image, entries: Mapping[int, int]) -> tuple[int, int]:
    """Return the half-open range of symbols that the hash table contains."""
    if _DT_GNU_HASH in entries:
        return _gnu_hashed(image, entries[_DT_GNU_HASH])
    if _DT_HASH not in entries:
        return 0, 0
    is_wide = image.is_64_bit and image.machine_number in WIDE_HASH_MACHINES
    (_, (end,)) = image.loaded_rows("Q" if is_wide else "I", entries[_DT_HASH], 2)
    return 1, end


def _gnu_hashed(image: _Image, address: int) -> tuple[int, int]:
    """Chains are stored in the order of symbols, and each ends with an odd word: the end of the
    last chain is the last symbol.
    """
    num_buckets, first, num_bloom, _ = (v for (v,) in image.loaded_rows("I", address, 4))
    buckets = address + 16 + num_bloom * (8 if image.is_64_bit else 4)
    last = max((v for (v,) in image.loaded_rows("I", buckets, num_buckets)), default=0)
    if last < first or not last:
        return first, first
    offset, most_bytes = image.locate(buckets + 4 * num_buckets + 4 * (last - first))
    word = struct.Struct(image.byte_order + "I")
    chain = image.read(offset, min(most_bytes // 4, 4 * MAX_SYMBOLS) * 4)
    for number, (value,) in enumerate(word.iter_unpack(chain)):
        if value & 1:
            return first, last + number + 1
    raise ElfError("the hash table has an unterminated chain")
