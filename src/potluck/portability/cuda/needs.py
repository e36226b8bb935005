"""What a library needs of NVIDIA's driver and GPU, read from its bytes alone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.errors import FatBinaryError
from potluck.portability.cuda.fat_binary import CodeKind, GpuCode, GpuModule, gpu_modules
from potluck.portability.cuda.table import CudaTable, Numbers, dotted
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import ElfData
from potluck.portability.elf.sections import section

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


def read_cuda_needs(elf: ElfFile, data: ElfData, table: CudaTable) -> CudaNeeds | None:
    """Return what ``data``, from which ``elf`` was read, needs of CUDA; None if it does not use
    CUDA.

    Raise ``ElfError`` as ``open_image`` does.
    """
    modules, problem = _modules(data)
    libraries = tuple(filter(_TOOLKIT_LIBRARY.fullmatch, elf.needed))
    uses_driver = bool(modules) or any(map(_DRIVER_USERS.fullmatch, elf.needed))
    if not uses_driver and not problem and not libraries:
        return None
    traces = [_compiler(data), *_written(modules, table), *map(_linked, libraries)]
    # The library that linked the others is at least as new as they are.
    toolkit, evidence = max(traces, key=lambda trace: trace[0])
    return CudaNeeds(
        toolkit=toolkit,
        evidence=evidence,
        modules=modules,
        uses_driver=uses_driver,
        problem=problem,
    )


def _modules(data: ElfData) -> tuple[tuple[GpuModule, ...], str]:
    try:
        return gpu_modules(data), ""
    except FatBinaryError as error:
        return (), error.message


def _compiler(data: ElfData) -> tuple[Numbers, str]:
    """Return the version of the compiler that the library contains."""
    view = section(data, ".rodata")
    if view is None:
        return (), ""
    with view:
        banner = _BANNER.search(view)
        version = (int(banner[1]), int(banner[2])) if banner else ()
    return version, "version of the compiler in it" if version else ""


def _written(modules: tuple[GpuModule, ...], table: CudaTable) -> Iterator[tuple[Numbers, str]]:
    """Return the version of the PTX in it."""
    versions = {code.version for module in modules for code in module.codes if _is_ptx(code)}
    for version in versions:
        if cuda := table.cuda_of_ptx(version):
            yield cuda, f"its PTX is of version {dotted(version)}"


def _is_ptx(code: GpuCode) -> bool:
    return code.kind is CodeKind.PTX


def _linked(library: str) -> tuple[Numbers, str]:
    """Return the toolkit whose library is linked."""
    match = _TOOLKIT_LIBRARY.fullmatch(library)
    return ((int(match[1]),), f"it needs {library}") if match else ((), "")
