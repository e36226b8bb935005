"""What a library needs of NVIDIA's driver and GPU, read from its bytes and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from potluck.errors import FatBinaryError
from potluck.portability.cuda_table import CudaTable, Numbers, dotted
from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_image import ElfData
from potluck.portability.elf_sections import section
from potluck.portability.fat_binary import CodeKind, GpuCode, GpuModule, gpu_modules

_BANNER = re.compile(rb"Cuda compilation tools, release (\d{1,3})\.(\d{1,3})\b")
"""Of NVIDIA's compilers; a library that has NVRTC inside has it among its strings."""

_TOOLKIT_LIBRARY = re.compile(
    r"lib(?:cudart|nvrtc|nvJitLink|cublas|cublasLt|cupti)\.so\.(\d{1,3})(?:\.\d+)*"
)
"""Libraries whose soname ends in the toolkit's major version; others count for themselves."""

_DRIVER_USERS = re.compile(r"lib(?:cuda|cudart|cublas|cublasLt|cupti)\.so\..*")
"""The driver, and libraries that open it; compilers (NVRTC, nvJitLink) do without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaNeeds:
    """The CUDA that is in a library.

    ``toolkit`` it was built with is (13, 4), (13,) where the minor version left no trace, empty
    where it is not known; ``evidence`` says where that was read. ``modules`` are its GPU code;
    empty if it has none of its own, as libraries that only call others, or if it cannot be read:
    then ``problem`` says why. ``uses_driver`` is false of what only compiles.
    """

    toolkit: tuple[int, ...]
    evidence: str
    modules: tuple[GpuModule, ...]
    uses_driver: bool
    problem: str = ""


def read_cuda_needs(elf: ElfFile, data: ElfData, table: CudaTable) -> CudaNeeds | None:
    """What ``data``, of which ``elf`` was read, needs of CUDA; None if that is nothing.

    Raises ``ElfError`` as ``open_image`` does.
    """
    modules, problem = _modules(data)
    libraries = tuple(filter(_TOOLKIT_LIBRARY.fullmatch, elf.needed))
    uses_driver = bool(modules) or any(map(_DRIVER_USERS.fullmatch, elf.needed))
    if not uses_driver and not problem and not libraries:
        return None
    traces = [_compiler(data), *_written(modules, table), *map(_linked, libraries)]
    # What linked the rest together is at least as new as what it linked.
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
    """The compiler that is inside."""
    view = section(data, ".rodata")
    if view is None:
        return (), ""
    with view:
        banner = _BANNER.search(view)
        version = (int(banner[1]), int(banner[2])) if banner else ()
    return version, "the compiler inside says so" if version else ""


def _written(modules: tuple[GpuModule, ...], table: CudaTable) -> Iterator[tuple[Numbers, str]]:
    """The PTX that was written."""
    versions = {code.version for module in modules for code in module.codes if _is_ptx(code)}
    for version in versions:
        if cuda := table.cuda_of_ptx(version):
            yield cuda, f"its PTX is of version {dotted(version)}"


def _is_ptx(code: GpuCode) -> bool:
    return code.kind is CodeKind.PTX


def _linked(library: str) -> tuple[Numbers, str]:
    """The toolkit whose library is linked."""
    match = _TOOLKIT_LIBRARY.fullmatch(library)
    return ((int(match[1]),), f"it needs {library}") if match else ((), "")
