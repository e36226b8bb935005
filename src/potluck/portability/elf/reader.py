"""Read what an ELF file needs of a host, and what it provides, as the dynamic linker would.

Only what is loaded is read: the dynamic segment, its tables of symbols, versions, names and
relocations, and notes. Section headers may be absent. Time and memory are bounded for any input
(``MAX_SYMBOLS``, ``MAX_NAME_BYTES``): a valid file with 100,000 symbols takes 0.2 s.

It does not look for other files, nor simulate how a host would load this one: ``link`` does.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from potluck.portability.elf.dynamic import (
    DF_STATIC_TLS,
    DT_FLAGS,
    DT_SONAME,
    Dynamic,
    read_dynamic,
    read_versions,
)
from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import (
    END_OF_ADDRESSES,
    PF_X,
    PT_GNU_STACK,
    PT_LOAD,
    PT_TLS,
    SMALLEST_PAGE_BYTES,
    ElfImage,
    Segment,
)
from potluck.portability.elf.machines import EM_386, EM_X86_64
from potluck.portability.elf.symbols import read_symbols

_LARGEST_PAGE_BYTES = 2**16
"""The largest page of Linux kernels on the machines that wheels exist for."""


def read_elf(image: ElfImage) -> ElfFile:
    """Read an executable or a shared object. Raise ``ElfError`` if it is malformed.

    Neither the file's data nor a view of it is kept: a mapped file can be closed afterwards, even
    if this raised.
    """
    dynamic = read_dynamic(image)
    versions = read_versions(image, dynamic)
    undefined, defined = read_symbols(image, dynamic, versions)
    return ElfFile(
        machine=image.header.machine,
        soname=dynamic.text(DT_SONAME),
        interpreter=image.interpreter(),
        needed=tuple(map(dynamic.strings.text, dynamic.needed)),
        search_path=dynamic.search_path(),
        is_rpath=dynamic.is_rpath,
        version_needs=versions.needs,
        version_definitions=versions.definitions,
        undefined=undefined,
        defined=defined,
        max_page_bytes=_max_page_bytes(image),
        mappable_page_bytes=_mappable_page_bytes(image),
        needs_executable_stack=_needs_executable_stack(image),
        static_tls_bytes=_static_tls_bytes(image, dynamic),
    )


def _max_page_bytes(image: ElfImage) -> int:
    """Return the largest page size, in bytes, that divides every segment's alignment. The
    linker of glibc before 2.35 refuses the file if the kernel's pages are larger.
    """
    alignments = (each.align for each in image.of_type(PT_LOAD))
    return min((each & -each for each in alignments if each), default=0)


def _mappable_page_bytes(image: ElfImage) -> int:
    """Return the largest page size, in bytes, at which the file can be mapped. Pages of the file
    are mapped to pages of memory, so an address and its offset must have the same position within a
    page, and segments with different permissions cannot share a page.
    """
    segments = image.of_type(PT_LOAD)
    if not segments:
        return 0
    moved = (abs(each.vaddr - each.offset) for each in segments)
    page_bytes = min((each & -each for each in moved if each), default=_LARGEST_PAGE_BYTES)
    page_bytes = min(page_bytes, _LARGEST_PAGE_BYTES)
    while page_bytes > SMALLEST_PAGE_BYTES and _is_page_shared(segments, page_bytes):
        page_bytes //= 2
    return page_bytes


def _is_page_shared(segments: Sequence[Segment], page_bytes: int) -> bool:
    """Return whether neighbors with different permissions have a page in common."""
    return any(
        (before.vaddr + max(before.memsz, 1) - 1) // page_bytes >= after.vaddr // page_bytes
        and before.flags != after.flags
        for before, after in itertools.pairwise(segments)
    )


def _needs_executable_stack(image: ElfImage) -> bool:
    """Without a header for the stack, the default is executable on x86 (glibc,
    ``sysdeps/x86_64/stackinfo.h``) and not executable on other machines.
    """
    for segment in image.of_type(PT_GNU_STACK):
        return bool(segment.flags & PF_X)
    return image.header.machine_number in (EM_386, EM_X86_64)


def _static_tls_bytes(image: ElfImage, dynamic: Dynamic) -> int:
    if not dynamic.entries.get(DT_FLAGS, 0) & DF_STATIC_TLS:
        return 0
    num_bytes = sum(segment.memsz for segment in image.of_type(PT_TLS))
    return min(num_bytes, END_OF_ADDRESSES)
