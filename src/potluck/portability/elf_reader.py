"""Reads what an ELF file needs of a host, and what it gives, as the dynamic linker would.

Only what is loaded is read: the dynamic segment, its tables of symbols, versions, names and
relocations, and notes. Section headers may be absent. Time and memory are bounded whatever the
file says (``MAX_SYMBOLS``, ``MAX_NAME_BYTES``): a sound one of 100,000 symbols takes 0.2 s.

It does not look for other files, and does not say what a host would do with this one: ``link``
does.
"""

from __future__ import annotations

from potluck.errors import ElfError
from potluck.portability.elf_dynamic import (
    DF_STATIC_TLS,
    DT_FLAGS,
    DT_RPATH,
    DT_RUNPATH,
    DT_SONAME,
    Dynamic,
    read_dynamic,
)
from potluck.portability.elf_file import ElfFile
from potluck.portability.elf_image import (
    EM_386,
    EM_X86_64,
    PF_X,
    PT_GNU_STACK,
    PT_INTERP,
    PT_LOAD,
    PT_TLS,
    ElfData,
    ElfImage,
    open_image,
)
from potluck.portability.elf_notes import x86_levels
from potluck.portability.elf_symbols import read_symbols
from potluck.portability.elf_versions import read_versions

_MAX_PATH_BYTES = 4096


def read_elf(data: ElfData) -> ElfFile:
    """An executable or a shared object, from the bytes of the whole file.

    ``data`` is not kept, and no view of it: a mapped file can be closed after, also if this raised.
    Raises ``ElfError`` for what is broken or no ELF file, ``NotLoadableError`` for object files and
    core dumps.
    """
    image = open_image(data)
    dynamic = read_dynamic(image)
    versions = read_versions(image, dynamic)
    symbols = read_symbols(image, dynamic, versions)
    is_rpath = DT_RUNPATH not in dynamic.entries
    search_path = dynamic.text(DT_RPATH if is_rpath else DT_RUNPATH)
    needed_level, _ = x86_levels(image)
    return ElfFile(
        machine=image.header.machine,
        soname=dynamic.text(DT_SONAME),
        interpreter=_interpreter(image),
        needed=tuple(dynamic.strings.text(offset) for offset in dynamic.needed),
        search_path=tuple(path for path in search_path.split(":") if path),
        is_rpath=is_rpath and DT_RPATH in dynamic.entries,
        version_needs=versions.needs,
        version_definitions=versions.definitions,
        undefined=symbols.undefined,
        defined=symbols.defined,
        features=(needed_level,) if needed_level else (),
        max_page_bytes=_max_page_bytes(image),
        needs_executable_stack=_needs_executable_stack(image),
        static_tls_bytes=_static_tls_bytes(image, dynamic),
    )


def _interpreter(image: ElfImage) -> str:
    for segment in image.of_type(PT_INTERP):
        num_bytes = int(segment["filesz"])
        if num_bytes > _MAX_PATH_BYTES:
            raise ElfError(f"the path of its interpreter has {num_bytes} bytes")
        path = image.read(int(segment["offset"]), num_bytes, "the path of its interpreter")
        return path.split(b"\0")[0].decode("utf-8", "backslashreplace")
    return ""


def _max_page_bytes(image: ElfImage) -> int:
    """The linker refuses an alignment that is no multiple of the kernel's page."""
    alignments = [int(segment["align"]) for segment in image.of_type(PT_LOAD)]
    return min((each & -each for each in alignments if each), default=0)


def _needs_executable_stack(image: ElfImage) -> bool:
    """Where nothing is said, x86 has meant one since before there was a way to say it
    (glibc, ``sysdeps/x86_64/stackinfo.h``); other machines mean none.
    """
    for segment in image.of_type(PT_GNU_STACK):
        return bool(segment["flags"] & PF_X)
    return image.header.machine_number in (EM_386, EM_X86_64)


def _static_tls_bytes(image: ElfImage, dynamic: Dynamic) -> int:
    if not dynamic.entries.get(DT_FLAGS, 0) & DF_STATIC_TLS:
        return 0
    return sum(int(segment["memsz"]) for segment in image.of_type(PT_TLS))
