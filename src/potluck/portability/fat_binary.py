"""GPU code in a library: NVIDIA's fat binaries, read and never unpacked.

``nvcc`` puts into the section ``.nv_fatbin`` one fat binary per translation unit: the same kernels
once for each architecture, as machine code (SASS, in an ELF file of its own) or as PTX, which the
driver compiles for the GPU that it finds. Compressed code says its architecture all the same: that
stands in front of it. ``__nv_relfatbin`` holds code that was still to be linked; what came of it
stands in ``.nv_fatbin``.

A fat binary begins with a header of 16 bytes: magic 0xBA55ED50, version, its own size, and
the bytes that follow. Then come entries, each a header (64 bytes and more, by its own word) and
its code, padded.

Sources: ``fatbinary.h`` and ``fatBinaryCtl.h`` of the CUDA toolkit, for the header and kinds;
github.com/n-eiling/cuda-fatbin-decompression (``fatbin-decompress.h``) and
github.com/GrigoryEvko/nvopen-tools (``fatbin/FORMAT_SPECIFICATION.md``), which found the entries
out, and agree. The architectures are those in the flags of the ELF files inside (warp-lang 1.6.2
and 1.19.0) and in the ``.target`` of the unpacked PTX (1.19.0).
"""

from __future__ import annotations

import enum
import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.errors import FatBinaryError
from potluck.portability.elf_image import ElfData
from potluck.portability.elf_sections import section

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
"""No library has so many: cuBLASLt of CUDA 13, the fullest that was looked at, has 5,424."""


class CodeKind(enum.StrEnum):
    """The form of GPU code."""

    PTX = "ptx"
    """Text for the driver's compiler."""
    SASS = "sass"
    """Machine code."""
    OTHER = "other"
    """What no driver takes by itself: intermediate code that is linked at run time."""


_KINDS = {1: CodeKind.PTX, 2: CodeKind.SASS}


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class GpuCode:
    """One entry: ``capability`` is (9, 0) of ``sm_90`` or ``compute_90``. ``version`` is PTX's
    (8, 7); of SASS, that of its ELF format.

    That code uses features which no other architecture has (``sm_90a``) is not told apart.
    """

    kind: CodeKind
    capability: tuple[int, int]
    version: tuple[int, int]
    is_compressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModule:
    """Fat binaries that hold code of the same kinds: ``count`` of them. One runs on a GPU where one
    of its ``codes`` does; they are in ascending order, each once.
    """

    codes: tuple[GpuCode, ...]
    count: int


def gpu_modules(data: ElfData) -> tuple[GpuModule, ...]:
    """The fat binaries of a library, the most frequent sort first.

    Raises ``FatBinaryError``; ``ElfError`` for what is no executable or shared object.
    """
    for name in (".nv_fatbin", "__nv_relfatbin"):
        view = section(data, name)
        if view is not None:
            with view:
                return read_fat_binaries(view)
    return ()


def read_fat_binaries(view: memoryview) -> tuple[GpuModule, ...]:
    """The fat binaries that stand in ``view`` one after another, with padding between them.

    Raises ``FatBinaryError``. Of ``view``, no slice outlives the call.
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
    """Where the entries of the fat binary at ``start`` begin and end."""
    if start + _HEADER.size > len(view):
        raise FatBinaryError("GPU code ends within a header")
    _, version, header_size, num_bytes = _HEADER.unpack_from(view, start)
    begin = start + header_size
    if version != VERSION or header_size < _HEADER.size:
        raise FatBinaryError(
            f"GPU code is of version {version}, with a header of {header_size} bytes"
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
