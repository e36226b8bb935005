"""An ELF file as segments: headers, and bytes by offset or by address, with bounds.

Nothing is trusted: an offset, a size or a count that leaves the file raises ``ElfError``. What is
read is copied, so no view of a mapped file outlives a call, and an error's traceback does not keep
one open. Sections are not needed (``elf_sections`` reads them where they are): like the dynamic
linker, readers of the image go by program headers alone.

The format: System V Application Binary Interface, edition 4.1, and gABI's draft of 2013,
chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from potluck.errors import ElfError, NotLoadableError

ElfData: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
"""A whole file. A memoryview must be of bytes (``format`` ``B``)."""

Table: TypeAlias = npt.NDArray[np.void]
"""Records of the file, with the specification's names of fields without their prefix."""

PT_LOAD = 1
PT_DYNAMIC = 2
PT_INTERP = 3
PT_NOTE = 4
PT_TLS = 7
PT_GNU_STACK = 0x6474E551
PT_GNU_PROPERTY = 0x6474E553

PF_X = 1
PF_W = 2
PF_R = 4

EM_386 = 3
EM_MIPS = 8
EM_ARM = 40
EM_X86_64 = 62
EM_AARCH64 = 183

_ET_EXEC = 2
_ET_DYN = 3
_OTHER_TYPES = {1: "an object file", 4: "a core dump"}

_MACHINES = {
    # 32 bits little endian, 32 bits big endian, 64 bits little endian, 64 bits big endian
    EM_386: ("i686", "", "", ""),
    EM_MIPS: ("mips", "mips", "mips64", "mips64"),
    20: ("", "ppc", "", ""),
    21: ("", "", "ppc64le", "ppc64"),
    22: ("", "s390", "", "s390x"),
    EM_ARM: ("armv7l", "armv7b", "", ""),
    EM_X86_64: ("x32", "", "x86_64", ""),
    EM_AARCH64: ("", "", "aarch64", "aarch64_be"),
    243: ("riscv32", "", "riscv64", ""),
    258: ("", "", "loongarch64", ""),
}
"""What ``uname -m`` says where such files are run; ``x32`` has no word there."""

_HEADER = {
    # After the 16 bytes of e_ident: e_type, e_machine, e_version, e_entry, e_phoff, e_shoff,
    # e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    False: "HHIIIIIHHHHHH",
    True: "HHIQQQIHHHHHH",
}
_SEGMENT_FIELDS = {
    False: ("type", "offset", "vaddr", "paddr", "filesz", "memsz", "flags", "align"),
    True: ("type", "flags", "offset", "vaddr", "paddr", "filesz", "memsz", "align"),
}
_MAX_SEGMENTS = 2**10
"""Files have a dozen; whoever asks for an address goes through them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """What the header says. ``byte_order`` is ``<`` or ``>``, for ``struct`` and numpy."""

    is_64_bit: bool
    byte_order: str
    machine_number: int
    section_offset: int
    num_sections: int
    section_bytes: int
    names_section: int

    @property
    def machine(self) -> str:
        """As ``uname -m`` says it, or ``EM_<number>``."""
        names = _MACHINES.get(self.machine_number, ("",) * 4)
        name = names[2 * self.is_64_bit + (self.byte_order == ">")]
        return name or f"EM_{self.machine_number}"

    @property
    def address(self) -> str:
        """The type of an address or offset, for a numpy record."""
        return f"{self.byte_order}u{8 if self.is_64_bit else 4}"

    def record(self, **fields: str) -> np.dtype[np.void]:
        """A record of ``fields``: ``u2``, ``u4`` … in this byte order, or ``address``."""
        types = [
            (name, self.address if kind == "address" else self.byte_order + kind)
            for name, kind in fields.items()
        ]
        return np.dtype(types)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfImage:
    """A file with its program headers (``type``, ``offset``, ``vaddr``, ``filesz`` …)."""

    data: ElfData
    header: ElfHeader
    segments: Table

    def read(self, offset: int, num_bytes: int, what: str) -> bytes:
        """A copy of these bytes. Raises ``ElfError`` where the file has fewer."""
        return read_bytes(self.data, offset, num_bytes, what)

    def unpack(self, layout: str, offset: int, what: str) -> tuple[Any, ...]:
        """The fields at ``offset``, in the file's byte order."""
        form = self.header.byte_order + layout
        return struct.unpack(form, self.read(offset, struct.calcsize(form), what))

    def table(self, record: np.dtype[Any], offset: int, count: int, what: str) -> Any:
        """``count`` records (or numbers) from ``offset`` on."""
        return np.frombuffer(self.read(offset, count * record.itemsize, what), dtype=record)

    def of_type(self, segment_type: int) -> Table:
        """The program headers of this type, in the order of the file."""
        found: Table = self.segments[self.segments["type"] == segment_type]
        return found

    def locate(self, address: int, what: str) -> tuple[int, int]:
        """Where the byte that is loaded at ``address`` lies in the file, and how many bytes there
        are from it to the end of its segment. Raises ``ElfError`` if there is none.
        """
        for segment in self.of_type(PT_LOAD):
            within = address - int(segment["vaddr"])
            if 0 <= within < int(segment["filesz"]):
                offset = int(segment["offset"]) + within
                return offset, min(int(segment["filesz"]) - within, len(self.data) - offset)
        raise ElfError(f"{what} lies at {address:#x}, where nothing of the file is loaded")

    def loaded(self, address: int, num_bytes: int, what: str) -> bytes:
        """A copy of bytes by their address. They must be in one segment."""
        if num_bytes == 0:
            return b""
        offset, most_bytes = self.locate(address, what)
        if num_bytes > most_bytes:
            raise ElfError(f"{what} has {num_bytes} bytes, and its segment only {most_bytes}")
        return self.read(offset, num_bytes, what)

    def loaded_table(self, record: np.dtype[Any], address: int, count: int, what: str) -> Any:
        """``count`` records (or numbers) by their address."""
        return np.frombuffer(
            self.loaded(address, count * record.itemsize, what), dtype=record, count=count
        )


def read_bytes(data: ElfData, offset: int, num_bytes: int, what: str) -> bytes:
    """A copy of these bytes. Raises ``ElfError`` where the file has fewer."""
    if not 0 <= offset <= offset + num_bytes <= len(data):
        raise ElfError(
            f"{what} would be at {offset:#x} to {offset + num_bytes:#x}, "
            f"and the file ends at {len(data):#x}"
        )
    return bytes(data[offset : offset + num_bytes])


def open_image(data: ElfData) -> ElfImage:
    """The headers of an executable or a shared object.

    Raises ``ElfError`` where they are broken, ``NotLoadableError`` for other kinds of ELF files.
    """
    header, file_type, segment_offset, segment_bytes, num_segments = _read_header(data)
    if file_type in _OTHER_TYPES:
        raise NotLoadableError(f"this is {_OTHER_TYPES[file_type]}, which no linker loads")
    if file_type not in (_ET_EXEC, _ET_DYN):
        raise ElfError(f"there is no type of file {file_type}")
    record = _segment_record(header)
    if num_segments > _MAX_SEGMENTS:
        raise ElfError(f"it says that it has {num_segments} segments")
    if num_segments and segment_bytes != record.itemsize:
        raise ElfError(f"its program headers have {segment_bytes} bytes, not {record.itemsize}")
    headers = read_bytes(
        data, segment_offset, num_segments * record.itemsize, "the table of segments"
    )
    return ElfImage(data=data, header=header, segments=np.frombuffer(headers, dtype=record))


def _segment_record(header: ElfHeader) -> np.dtype[np.void]:
    words = ("type", "flags")
    return header.record(
        **{name: "u4" if name in words else "address" for name in _SEGMENT_FIELDS[header.is_64_bit]}
    )


def _read_header(data: ElfData) -> tuple[ElfHeader, int, int, int, int]:
    ident = bytes(data[:16])
    if ident[:4] != b"\x7fELF":
        raise ElfError("this is no ELF file")
    if len(ident) < 16 or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("its class or its byte order is not one that exists")
    is_64_bit = ident[4] == 2
    byte_order = "<" if ident[5] == 1 else ">"
    form = byte_order + _HEADER[is_64_bit]
    fields = struct.unpack(form, read_bytes(data, 16, struct.calcsize(form), "the header"))
    header = ElfHeader(
        is_64_bit=is_64_bit,
        byte_order=byte_order,
        machine_number=fields[1],
        section_offset=fields[5],
        section_bytes=fields[10],
        num_sections=fields[11],
        names_section=fields[12],
    )
    return header, fields[0], fields[4], fields[8], fields[9]
