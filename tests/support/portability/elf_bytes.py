"""ELF files put together byte by byte, well or ill, from the specification alone.

A file is one segment that is loaded ``BASE`` above its offsets, without section headers unless
``sections`` are asked for: what the dynamic linker needs, and no more.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BASE = 0x10000
HIDDEN = 0x8000
WEAK_NEED = 2
BASE_DEFINITION = 1

DT_TEXT_TAGS = {"needed": 1, "soname": 14, "rpath": 15, "runpath": 29}


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """``version`` is the raw index of the version table. Values and sections follow from
    ``is_defined`` unless they are given. The GNU hash table leads to what ``is_found``.
    """

    name: str | bytes
    is_defined: bool = False
    version: int = 1
    binding: int = 1
    kind: int = 2
    visibility: int = 0
    is_found: bool = True
    is_referenced: bool = True
    is_called: bool = False
    value: int | None = None
    section: int | None = None


@dataclass(frozen=True, kw_only=True)
class Need:
    """A library with the versions needed of it: name, index, flags."""

    library: str
    versions: Sequence[tuple[str, int, int]]


@dataclass(frozen=True, kw_only=True)
class Definition:
    name: str
    index: int
    flags: int = 0


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A program header besides those that ``Elf`` makes itself, over bytes of its own."""

    segment_type: int
    content: bytes = b""
    flags: int = 4
    align: int = 8
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Elf:
    is_64_bit: bool = True
    byte_order: str = "<"
    machine: int = 62
    file_type: int = 3
    needed: Sequence[str] = ()
    soname: str | bytes = ""
    rpath: str = ""
    runpath: str | None = None
    interpreter: str = ""
    symbols: Sequence[Symbol] = ()
    needs: Sequence[Need] = ()
    definitions: Sequence[Definition] = ()
    hash_table: str = "gnu"
    has_addends: bool = True
    segments: Sequence[Segment] = ()
    sections: Mapping[str, bytes] = field(default_factory=dict)
    constants: bytes = b""
    align: int = 0x1000
    entries: Mapping[int, int] = field(default_factory=dict)
    """Of the dynamic segment, over those that belong there."""
    entries_after_end: Mapping[int, int] = field(default_factory=dict)

    def build(self) -> bytes:
        return _Builder(self).build()


def gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def property_note(
    properties: Mapping[int, int], *, is_64_bit: bool = True, order: str = "<"
) -> bytes:
    """A note of GNU properties of four bytes each."""
    entries = b""
    for kind, value in properties.items():
        entries += struct.pack(order + "III", kind, 4, value) + bytes(4 if is_64_bit else 0)
    return struct.pack(order + "III", 4, len(entries), 5) + b"GNU\0" + entries


def code_segments(*functions: bytes) -> list[Segment]:
    """A segment of code, and the index of unwind tables that tells where its functions are.

    The two have to be neighbors in ``Elf.segments``.
    """
    code = b"".join(each.ljust(-(-len(each) // 8) * 8, b"\xcc") for each in functions)
    table_bytes, frame_bytes = 12 + 8 * len(functions), 16
    table, frames, start = b"", b"", -len(code)
    for each in functions:
        frame = table_bytes + len(frames)
        table += struct.pack("<ii", start, frame)
        frames += struct.pack("<IIiI", frame_bytes - 4, 0, start - (frame + 8), len(each))
        start += -(-len(each) // 8) * 8
    index = struct.pack("<4siI", b"\x01\x1b\x03\x3b", 0, len(functions)) + table + frames
    return [
        Segment(segment_type=1, flags=5, content=code),
        Segment(segment_type=0x6474E550, content=index),
    ]


def is_hashed(symbol: Symbol) -> bool:
    return symbol.is_defined and symbol.is_found


class _Builder:
    def __init__(self, elf: Elf) -> None:
        self.elf = elf
        self.word = "Q" if elf.is_64_bit else "I"
        self.word_bytes = 8 if elf.is_64_bit else 4
        self.names = b"\0"
        self.content = b""
        self.headers: list[tuple[int, int, int, int, int, int]] = []
        self.entries: list[tuple[int, int]] = []
        # Those that are not found by their names come first, as the GNU hash table wants it.
        self.symbols = sorted(elf.symbols, key=is_hashed)

    def pack(self, layout: str, *values: int) -> bytes:
        return struct.pack(self.elf.byte_order + layout.replace("W", self.word), *values)

    def name(self, text: str | bytes) -> int:
        data = text.encode() if isinstance(text, str) else text
        if data:
            self.names += data + b"\0"
        return len(self.names) - len(data) - 1 if data else 0

    def place(self, data: bytes) -> int:
        """Its offset in the file."""
        self.content += bytes(-len(self.content) % 8)
        offset = self.start + len(self.content)
        self.content += data
        return offset

    def table(self, tag: int, data: bytes, size_tag: int = 0) -> None:
        self.entries.append((tag, BASE + self.place(data)))
        if size_tag:
            self.entries.append((size_tag, len(data)))

    def build(self) -> bytes:
        elf = self.elf
        header_bytes, segment_bytes = (64, 56) if elf.is_64_bit else (52, 32)
        num_segments = 2 + bool(elf.interpreter) + len(elf.segments)
        self.start = -(-(header_bytes + segment_bytes * num_segments) // 8) * 8
        self.text_entries()
        if elf.constants:
            self.place(elf.constants)
        if elf.interpreter:
            path = elf.interpreter.encode() + b"\0"
            self.headers.append((3, 4, self.place(path), len(path), len(path), 1))
        for segment in elf.segments:
            size = len(segment.content)
            memory = size if segment.memory_bytes is None else segment.memory_bytes
            offset = self.place(segment.content)
            header = (segment.segment_type, segment.flags, offset, size, memory, segment.align)
            self.headers.append(header)
        self.symbol_tables()
        self.table(5, self.names, 10)
        entries = [*self.entries, *elf.entries.items(), (0, 0)]
        entries += [*elf.entries_after_end.items(), (0, 0)] if elf.entries_after_end else []
        dynamic = b"".join(self.pack("WW", *entry) for entry in entries)
        offset = self.place(dynamic)
        self.headers.append((2, 6, offset, len(dynamic), len(dynamic), 8))
        end = self.start + len(self.content)
        self.headers.insert(0, (1, 4, 0, end, end, elf.align))
        section_table = self.section_table()
        return self.header(section_table[0], section_table[1]) + self.content

    def text_entries(self) -> None:
        elf = self.elf
        for library in elf.needed:
            self.entries.append((DT_TEXT_TAGS["needed"], self.name(library)))
        for tag in ("soname", "rpath", "runpath"):
            text: str | bytes | None = getattr(elf, tag)
            if text or (tag == "runpath" and text is not None):
                self.entries.append((DT_TEXT_TAGS[tag], self.name(text)))

    def symbol_tables(self) -> None:
        if not self.symbols:
            return
        elf = self.elf
        table = bytes(24 if elf.is_64_bit else 16)
        relocations, calls = b"", b""
        for index, symbol in enumerate(self.symbols, start=1):
            table += self.symbol(symbol)
            info = index << 32 | 1 if elf.is_64_bit else index << 8 | 1
            entry = self.pack(
                "WWW" if elf.has_addends else "WW", *(0x100, info, 0)[: 2 + elf.has_addends]
            )
            if symbol.is_called:
                calls += entry
            elif symbol.is_referenced:
                relocations += entry
        self.table(6, table)
        self.entries.append((11, 24 if elf.is_64_bit else 16))
        self.table(*((7, relocations, 8) if elf.has_addends else (17, relocations, 18)))
        self.table(23, calls, 2)
        self.entries.append((20, 7 if elf.has_addends else 17))
        if elf.needs or elf.definitions:
            indexes = (0, *(symbol.version for symbol in self.symbols))
            self.table(0x6FFFFFF0, b"".join(self.pack("H", index) for index in indexes))
        if elf.needs:
            self.table(0x6FFFFFFE, self.version_needs())
        if elf.definitions:
            self.table(0x6FFFFFFC, self.version_definitions())
        if elf.hash_table == "gnu":
            self.table(0x6FFFFEF5, self.gnu_hash_table())
        elif elf.hash_table in ("sysv", "sysv-wide"):
            layout = "IIII" if elf.hash_table == "sysv" else "QQQQ"
            self.table(4, self.pack(layout, 1, len(self.symbols) + 1, 1, 0))

    def symbol(self, symbol: Symbol) -> bytes:
        name = self.name(symbol.name)
        info = symbol.binding << 4 | symbol.kind
        section = (1 if symbol.is_defined else 0) if symbol.section is None else symbol.section
        value = (0x100 if symbol.is_defined else 0) if symbol.value is None else symbol.value
        if self.elf.is_64_bit:
            return self.pack("IBBHQQ", name, info, symbol.visibility, section, value, 0)
        return self.pack("IIIBBH", name, value, 0, info, symbol.visibility, section)

    def version_needs(self) -> bytes:
        table = b""
        for number, need in enumerate(self.elf.needs, start=1):
            aux = b""
            for place, (name, index, flags) in enumerate(need.versions, start=1):
                step = 16 if place < len(need.versions) else 0
                aux += self.pack("IHHII", 0, flags, index, self.name(name), step)
            step = 16 + len(aux) if number < len(self.elf.needs) else 0
            table += self.pack("HHIII", 1, len(need.versions), self.name(need.library), 16, step)
            table += aux
        return table

    def version_definitions(self) -> bytes:
        table = b""
        for number, each in enumerate(self.elf.definitions, start=1):
            step = 28 if number < len(self.elf.definitions) else 0
            table += self.pack("HHHHIII", 1, each.flags, each.index, 1, 0, 20, step)
            table += self.pack("II", self.name(each.name), 0)
        return table

    def gnu_hash_table(self) -> bytes:
        """One bucket, after a filter that lets all pass."""
        defined = [symbol for symbol in self.symbols if is_hashed(symbol)]
        first = 1 + len(self.symbols) - len(defined)
        head = self.pack("IIII", 1, first, 1, 0) + b"\xff" * self.word_bytes
        chain = b""
        for place, symbol in enumerate(defined, start=1):
            name = symbol.name.encode() if isinstance(symbol.name, str) else symbol.name
            chain += self.pack("I", gnu_hash(name) & ~1 | (place == len(defined)))
        return head + self.pack("I", first if defined else 0) + chain

    def section_table(self) -> tuple[int, int]:
        """Where it begins, and how many sections it has."""
        if not self.elf.sections:
            return 0, 0
        names = b"\0.shstrtab\0"
        rows = [(0,) * 10]
        for name, data in self.elf.sections.items():
            rows.append((len(names), 1, 2, 0, self.place(data), len(data), 0, 0, 1, 0))
            names += name.encode() + b"\0"
        rows.append((1, 3, 0, 0, self.place(names), len(names), 0, 0, 1, 0))
        layout = "IIWWWWIIWW"
        return self.place(b"".join(self.pack(layout, *row) for row in rows)), len(rows)

    def header(self, section_offset: int, num_sections: int) -> bytes:
        elf = self.elf
        is_little = elf.byte_order == "<"
        header_bytes, segment_bytes = (64, 56) if elf.is_64_bit else (52, 32)
        header = (
            b"\x7fELF" + bytes((2 if elf.is_64_bit else 1, 1 if is_little else 2, 1)) + bytes(9)
        )
        header += self.pack(
            "HHIWWWIHHHHHH",
            elf.file_type,
            elf.machine,
            1,
            0,
            header_bytes,
            section_offset,
            0,
            header_bytes,
            segment_bytes,
            len(self.headers),
            64 if elf.is_64_bit else 40,
            num_sections,
            max(num_sections - 1, 0),
        )
        for kind, flags, offset, size, memory, align in self.headers:
            address = BASE + offset
            if elf.is_64_bit:
                header += self.pack(
                    "IIQQQQQQ", kind, flags, offset, address, address, size, memory, align
                )
            else:
                header += self.pack(
                    "IIIIIIII", kind, offset, address, address, size, memory, flags, align
                )
        return header + bytes(self.start - len(header))
