"""An ELF file as segments: headers, and bounds-checked access to bytes by offset or by address.

Nothing is trusted: an offset, a size or a count that leaves the file raises ``ElfError``. Data is
copied when it is read, so no view of a mapped file outlives a call, and an error's traceback does
not keep one open. Sections are not needed (``elf.sections`` reads them if they exist): like the
dynamic linker, readers of the image use program headers alone.

New machines without installed packages describe themselves with this, ``elf.dynamic`` and
``elf.hash_table`` (``cluster.invitations``), so these import only the standard library.

The format: System V Application Binary Interface, edition 4.1, and gABI's draft of 2013,
chapters 4 and 5.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from potluck.errors import ElfError, NotLoadableError
from potluck.portability.elf.machines import machine_name

ElfData: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
"""A whole file. A memoryview must be of bytes (``format`` ``B``)."""

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

_ET_EXEC = 2
_ET_DYN = 3
_OTHER_TYPES = {1: "an object file", 4: "a core dump"}

_HEADER = {
    # After the 16 bytes of e_ident: e_type, e_machine, e_version, e_entry, e_phoff, e_shoff,
    # e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx.
    False: "HHIIIIIHHHHHH",
    True: "HHIQQQIHHHHHH",
}
_SEGMENT = {False: "3I4x4I", True: "2I2Q8x3Q"}
SMALLEST_PAGE_BYTES = 2**12
"""The smallest page size of any kernel: bytes in the same page of that size are mapped everywhere.
"""

_MAX_SEGMENTS = 2**10
"""Files have about a dozen; each lookup of an address scans them."""

_MAX_PATH_BYTES = 4096

END_OF_ADDRESSES = 2**56
"""No process has more (52 bits, with large addresses). Files may claim any, up to 64 bits."""


class Segment(NamedTuple):
    """A program header without ``p_paddr``, with the specification's names of fields."""

    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfHeader:
    """The fields of the header. ``byte_order`` is ``<`` or ``>``, for ``struct`` and numpy."""

    is_64_bit: bool
    byte_order: str
    machine_number: int
    section_offset: int
    num_sections: int
    section_bytes: int
    names_section: int

    @property
    def machine(self) -> str:
        """The machine as ``uname -m`` names it, or ``EM_<number>``."""
        return machine_name(
            self.machine_number, is_64_bit=self.is_64_bit, byte_order=self.byte_order
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfImage:
    """A file with its program headers."""

    data: ElfData
    header: ElfHeader
    segments: tuple[Segment, ...]

    def read(self, offset: int, num_bytes: int, what: str) -> bytes:
        """Return a copy of these bytes. Raise ``ElfError`` if the file has fewer."""
        return read_bytes(self.data, offset, num_bytes, what)

    def unpack(self, layout: str, offset: int, what: str) -> tuple[Any, ...]:
        """Return the fields at ``offset``, in the file's byte order."""
        form = self.header.byte_order + layout
        return struct.unpack(form, self.read(offset, struct.calcsize(form), what))

    def of_type(self, segment_type: int) -> list[Segment]:
        """Return the program headers of this type, in the order of the file."""
        return [each for each in self.segments if each.type == segment_type]

    def interpreter(self) -> str:
        """Return the path of the loader that the file names; empty without one."""
        for segment in self.of_type(PT_INTERP):
            if segment.filesz > _MAX_PATH_BYTES:
                raise ElfError(f"the path of its interpreter has {segment.filesz} bytes")
            path = self.read(segment.offset, segment.filesz, "the path of its interpreter")
            return path.split(b"\0")[0].decode("utf-8", "backslashreplace")
        return ""

    def locate(self, address: int, what: str) -> tuple[int, int]:
        """Return the file offset of the byte that is loaded at ``address``, and how many bytes
        follow it in the same mapping. Raise ``ElfError`` if there is none.

        Whole pages are mapped, and the file's bytes after the segment's end stay in the last page
        unless the segment's memory beyond the file is cleared (``elf_map`` in Linux's
        fs/binfmt_elf.c, ``_dl_map_segments`` in glibc). Programs whose string tables end there do
        run.
        """
        for segment in self.of_type(PT_LOAD):
            within = address - segment.vaddr
            if 0 <= within < segment.filesz:
                offset = segment.offset + within
                end = segment.vaddr + segment.filesz
                if segment.memsz <= segment.filesz:
                    end = -(-end // SMALLEST_PAGE_BYTES) * SMALLEST_PAGE_BYTES
                return offset, min(end - address, len(self.data) - offset)
        raise ElfError(f"{what} is at {address:#x}, where no part of the file is loaded")

    def address(self, offset: int) -> int | None:
        """Return the address at which the byte at a file offset is loaded; None if it is not."""
        for segment in self.of_type(PT_LOAD):
            within = offset - segment.offset
            if 0 <= within < segment.filesz:
                return segment.vaddr + within
        return None

    def span(self, address: int, num_bytes: int, what: str) -> tuple[int, int]:
        """Return the half-open range of file offsets of bytes at an address, which must be in one
        segment.
        """
        if num_bytes == 0:
            return 0, 0
        offset, most_bytes = self.locate(address, what)
        if num_bytes > most_bytes:
            raise ElfError(f"{what} has {num_bytes} bytes, but only {most_bytes} are mapped there")
        return offset, offset + num_bytes

    def loaded(self, address: int, num_bytes: int, what: str) -> bytes:
        """Return a copy of the bytes at an address. They must be in one segment."""
        start, end = self.span(address, num_bytes, what)
        return self.read(start, end - start, what)


def read_bytes(data: ElfData, offset: int, num_bytes: int, what: str) -> bytes:
    """Return a copy of these bytes. Raise ``ElfError`` if the file has fewer."""
    if not 0 <= offset <= offset + num_bytes <= len(data):
        raise ElfError(
            f"{what} would be at {offset:#x} to {offset + num_bytes:#x}, but the file ends at"
            f" {len(data):#x}"
        )
    return bytes(data[offset : offset + num_bytes])


def release_pages(data: ElfData) -> None:
    """Unmap the pages of a mapped file that were read: they count as memory of this process.

    The data stays valid. What is read again is mapped again.
    """
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)


def open_image(data: ElfData) -> ElfImage:
    """Read the headers of an executable or a shared object.

    Raise ``ElfError`` if they are malformed, and ``NotLoadableError`` for other kinds of ELF files.
    """
    header, file_type, segment_offset, segment_bytes, num_segments = _read_header(data)
    if file_type in _OTHER_TYPES:
        raise NotLoadableError(f"this is {_OTHER_TYPES[file_type]}, which cannot be loaded")
    if file_type not in (_ET_EXEC, _ET_DYN):
        raise ElfError(f"unknown file type {file_type}")
    row = struct.Struct(header.byte_order + _SEGMENT[header.is_64_bit])
    if num_segments > _MAX_SEGMENTS:
        raise ElfError(f"its header claims {num_segments} segments")
    if num_segments and segment_bytes != row.size:
        raise ElfError(f"its program headers have {segment_bytes} bytes, not {row.size}")
    headers = read_bytes(data, segment_offset, num_segments * row.size, "the table of segments")
    rows = row.iter_unpack(headers)
    if not header.is_64_bit:  # where the flags come later
        rows = ((each[0], each[5], *each[1:5], each[6]) for each in rows)
    return ElfImage(data=data, header=header, segments=tuple(map(Segment._make, rows)))


def _read_header(data: ElfData) -> tuple[ElfHeader, int, int, int, int]:
    ident = bytes(data[:16])
    if ident[:4] != b"\x7fELF":
        raise ElfError("this is not an ELF file")
    if len(ident) < 16 or ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("its class or its byte order is invalid")
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
