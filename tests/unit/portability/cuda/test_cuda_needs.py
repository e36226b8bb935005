from __future__ import annotations

import pytest
from support.portability.gpu_libraries import PTX, SASS, Entry, elf_file, fat_binary, shared_object

from potluck.portability.cuda.fat_binary import CudaNeeds, read_cuda_needs
from potluck.portability.elf.image import open_image

BANNER = b"\0Cuda compilation tools, release 12.9, V12.9.86\0"


def needs(sections: dict[str, bytes], *libraries: str) -> CudaNeeds | None:
    return read_cuda_needs(elf_file(needed=libraries), open_image(shared_object(sections)))


def gpu_code(version: tuple[int, int]) -> dict[str, bytes]:
    return {".nv_fatbin": fat_binary(Entry(kind=PTX, architecture=80, version=version))}


def test_a_library_without_cuda_needs_none() -> None:
    assert needs({".rodata": BANNER}, "libm.so.6", "libcublas_fake.so.12") is None


@pytest.mark.parametrize(
    ("sections", "libraries", "toolkit", "evidence"),
    [
        (gpu_code((8, 4)), (), (12, 4), "PTX is of version 8.4"),
        ({**gpu_code((8, 4)), ".rodata": BANNER}, (), (12, 9), "version of the compiler"),
        ({}, ("libcudart.so.12",), (12,), "libcudart.so.12"),
        ({}, ("libcudart.so.11.0",), (11,), "libcudart.so.11.0"),
        (gpu_code((8, 4)), ("libcublas.so.13", "libcufft.so.99"), (13,), "libcublas.so.13"),
        (gpu_code((99, 1)), (), (), ""),
        ({}, ("libcuda.so.1",), (), ""),
    ],
)
def test_the_newest_trace_of_a_toolkit_counts(
    sections: dict[str, bytes],
    libraries: tuple[str, ...],
    toolkit: tuple[int, ...],
    evidence: str,
) -> None:
    found = needs(sections, *libraries)
    assert found is not None
    assert found.toolkit == toolkit
    assert evidence in found.evidence
    assert bool(found.evidence) is bool(toolkit)
    assert found.uses_driver


@pytest.mark.parametrize("library", ["libnvrtc.so.12", "libnvJitLink.so.13"])
def test_what_only_compiles_uses_no_driver(library: str) -> None:
    found = needs({}, library)
    assert found is not None
    assert not found.uses_driver


def test_machine_code_tells_no_toolkit() -> None:
    found = needs({".nv_fatbin": fat_binary(Entry(kind=SASS, architecture=90, version=(1, 7)))})
    assert found is not None
    assert found.toolkit == ()
    assert [module.codes[0].capability for module in found.modules] == [(9, 0)]


def test_code_that_cannot_be_read_is_told() -> None:
    found = needs({".nv_fatbin": fat_binary(Entry(kind=SASS, architecture=90))[:-1]})
    assert found is not None
    assert found.modules == ()
    assert "beyond its section" in found.problem
