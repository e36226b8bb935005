"""GPU code in a library: NVIDIA's fat binaries, read without unpacking them.

``nvcc`` puts into the section ``.nv_fatbin`` one fat binary per translation unit: the same kernels
once for each architecture, as machine code (SASS, in an ELF file of its own) or as PTX, which the
driver compiles for the installed GPU. The architecture is stored in front of the code, so it can be
read even if the code is compressed. ``__nv_relfatbin`` holds relocatable code; the result of
linking it is in ``.nv_fatbin``.

A fat binary begins with a header of 16 bytes: magic 0xBA55ED50, version, its own size, and
the bytes that follow. Then come entries, each a header (64 bytes or more, as it states itself) and
its code, padded.

Sources: ``fatbinary.h`` and ``fatBinaryCtl.h`` of the CUDA toolkit, for the header and kinds;
github.com/n-eiling/cuda-fatbin-decompression (``fatbin-decompress.h``) and
github.com/GrigoryEvko/nvopen-tools (``fatbin/FORMAT_SPECIFICATION.md``), which reverse-engineered
the entries and agree with each other. The architectures are those in the flags of the ELF files
inside (warp-lang 1.6.2 and 1.19.0) and in the ``.target`` of the unpacked PTX (1.19.0).
"""

from __future__ import annotations

import enum
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.errors import FatBinaryError
from potluck.portability.elf.image import ElfData
from potluck.portability.elf.sections import section

MAGIC = 0xBA55ED50
VERSION = 1

_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")

_MAGIC_BYTES = re.compile(re.escape(struct.pack("<I", MAGIC)))

FLAG_LZ4 = 0x2000
FLAG_ZSTD = 0x8000
_COMPRESSED = 0x1000 | FLAG_LZ4 | FLAG_ZSTD
"""Bit 12 is an older form of bit 13, both of LZ4's kind; bit 15 is Zstandard's."""

MAX_ENTRIES = 1 << 18
"""More than any known library has: cuBLASLt of CUDA 13 has 5,424, the most of those examined."""


class CodeKind(enum.StrEnum):
    """The form of GPU code."""

    PTX = "ptx"
    """Assembly text, which the driver compiles."""
    SASS = "sass"
    """Machine code."""
    OTHER = "other"
    """Intermediate code that is linked at run time; no driver accepts it by itself."""


_KINDS = {1: CodeKind.PTX, 2: CodeKind.SASS}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuCode:
    """One entry: ``capability`` is (9, 0) of ``sm_90`` or ``compute_90``. ``version`` is PTX's
    (8, 7); of SASS, that of its ELF format.

    Architecture-specific code (``sm_90a``) is not distinguished.
    """

    kind: CodeKind
    capability: tuple[int, int]
    version: tuple[int, int]
    is_compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModule:
    """A group of ``count`` fat binaries that hold the same kinds of code. One runs on a GPU if one
    of its ``codes`` does; these are in ascending order, without duplicates.
    """

    codes: tuple[GpuCode, ...]
    count: int


def gpu_modules(data: ElfData) -> tuple[GpuModule, ...]:
    """Return the fat binaries of a library, the most frequent group first.

    Raise ``FatBinaryError`` if they are malformed, and ``ElfError`` if the file is not an
    executable or a shared object.
    """
    for name in (".nv_fatbin", "__nv_relfatbin"):
        view = section(data, name)
        if view is not None:
            with view:
                return read_fat_binaries(view)
    return ()


def read_fat_binaries(view: memoryview) -> tuple[GpuModule, ...]:
    """Return the consecutive fat binaries in ``view``, which may have padding between them.

    Raise ``FatBinaryError`` if they are malformed. No slice of ``view`` outlives the call.
    """
    counts: Counter[tuple[GpuCode, ...]] = Counter()
    num_entries = 0
    position = 0
    while found := _MAGIC_BYTES.search(view, position):
        begin, position = _extent(view, found.start())
        codes = list(_entries(view, begin, position, MAX_ENTRIES - num_entries))
        num_entries += len(codes)
        if codes:
            counts[tuple(sorted(set(codes)))] += 1
    return tuple(GpuModule(codes=codes, count=count) for codes, count in counts.most_common())


def _extent(view: memoryview, start: int) -> tuple[int, int]:
    """Return where the entries of the fat binary at ``start`` begin and end."""
    if start + _HEADER.size > len(view):
        raise FatBinaryError("GPU code ends within a header")
    _, version, header_size, num_bytes = _HEADER.unpack_from(view, start)
    begin = start + header_size
    if version != VERSION or header_size < _HEADER.size:
        raise FatBinaryError(
            f"unsupported GPU code: version {version}, with a header of {header_size} bytes"
        )
    if begin + num_bytes > len(view):
        raise FatBinaryError(f"GPU code of {num_bytes} bytes ends beyond its section")
    return begin, begin + num_bytes


def _entries(view: memoryview, begin: int, end: int, at_most: int) -> Iterator[GpuCode]:
    position = begin
    while position < end:
        if at_most == 0:
            raise FatBinaryError(f"GPU code has more than {MAX_ENTRIES} entries")
        at_most -= 1
        if position + _ENTRY.size > end:
            raise FatBinaryError("GPU code ends within the header of an entry")
        fields = _ENTRY.unpack_from(view, position)
        kind, _, header_size, num_bytes, _, _, minor, major, architecture = fields[:9]
        position += header_size + num_bytes
        if header_size < _ENTRY.size or position > end:
            raise FatBinaryError(
                f"an entry of {header_size} + {num_bytes} bytes ends beyond its GPU code"
            )
        yield GpuCode(
            kind=_KINDS.get(kind, CodeKind.OTHER),
            capability=divmod(architecture, 10),
            version=(major, minor),
            is_compressed=bool(fields[11] & _COMPRESSED),
        )
