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
from potluck.portability.cuda.table import Numbers, dotted, shipped_table
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfImage
from potluck.portability.elf.sections import section

MAGIC = 0xBA55ED50
VERSION = 1

_HEADER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")

_MAGIC_BYTES = re.compile(re.escape(struct.pack("<I", MAGIC)))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuModule:
    """A group of ``count`` fat binaries that hold the same kinds of code. One runs on a GPU if one
    of its ``codes`` does; these are in ascending order, without duplicates.
    """

    codes: tuple[GpuCode, ...]
    count: int


def gpu_modules(image: ElfImage) -> tuple[GpuModule, ...]:
    """Return the fat binaries of a library, the most frequent group first.

    Raise ``FatBinaryError`` if they are malformed.
    """
    for name in (".nv_fatbin", "__nv_relfatbin"):
        view = section(image, name)
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
        )


_BANNER = re.compile(rb"Cuda compilation tools, release (\d{1,3})\.(\d{1,3})\b")
"""The version string of NVIDIA's compilers; libraries that contain NVRTC contain it."""

_TOOLKIT_LIBRARY = re.compile(
    r"lib(?:cudart|nvrtc|nvJitLink|cublas|cublasLt|cupti)\.so\.(\d{1,3})(?:\.\d+)*"
)
"""Libraries whose soname ends in the toolkit's major version; others have versions of their own."""

_DRIVER_USERS = re.compile(r"lib(?:cuda|cudart|cublas|cublasLt|cupti)\.so\..*")
"""The driver, and libraries that open it; compilers (NVRTC, nvJitLink) do not need it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaNeeds:
    """The use of CUDA in a library.

    ``toolkit`` is the version that it was built with: (13, 4), or (13,) if the minor version is
    unknown, or empty; ``evidence`` says how it was determined. ``modules`` are its GPU code; empty
    if it has none of its own, like libraries that only call others, or if it cannot be read: then
    ``problem`` says why. ``uses_driver`` is false for libraries that only compile.
    """

    toolkit: tuple[int, ...]
    evidence: str
    modules: tuple[GpuModule, ...]
    uses_driver: bool
    problem: str = ""


def read_cuda_needs(elf: ElfFile, image: ElfImage) -> CudaNeeds | None:
    """Return what ``elf``, read from ``image``, needs of CUDA; None if it does not use CUDA."""
    modules: tuple[GpuModule, ...] = ()
    problem = ""
    try:
        modules = gpu_modules(image)
    except FatBinaryError as error:
        problem = error.message
    libraries = tuple(filter(_TOOLKIT_LIBRARY.fullmatch, elf.needed))
    uses_driver = bool(modules) or any(map(_DRIVER_USERS.fullmatch, elf.needed))
    if not uses_driver and not problem and not libraries:
        return None
    traces = [_compiler(image), *_written(modules), *map(_linked, libraries)]
    # The library that linked the others is at least as new as they are.
    toolkit, evidence = max(traces, key=lambda trace: trace[0])
    return CudaNeeds(
        toolkit=toolkit,
        evidence=evidence,
        modules=modules,
        uses_driver=uses_driver,
        problem=problem,
    )


def _compiler(image: ElfImage) -> tuple[Numbers, str]:
    """Return the version of the compiler that the library contains."""
    view = section(image, ".rodata")
    if view is None:
        return (), ""
    with view:
        banner = _BANNER.search(view)
        version = (int(banner[1]), int(banner[2])) if banner else ()
    return version, "version of the compiler in it" if version else ""


def _written(modules: tuple[GpuModule, ...]) -> Iterator[tuple[Numbers, str]]:
    """Return the version of the PTX in it."""
    codes = (code for module in modules for code in module.codes)
    versions = {code.version for code in codes if code.kind is CodeKind.PTX}
    for version in versions:
        if cuda := shipped_table().cuda_of_ptx(version):
            yield cuda, f"its PTX is of version {dotted(version)}"


def _linked(library: str) -> tuple[Numbers, str]:
    """Return the toolkit whose library is linked."""
    match = _TOOLKIT_LIBRARY.fullmatch(library)
    return ((int(match[1]),), f"it needs {library}") if match else ((), "")
