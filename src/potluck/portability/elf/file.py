"""The requirements of an ELF file on a host, and what it provides, as read by ``elf.reader``."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.portability.elf.defined_symbols import DefinedSymbols


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeed:
    """A version that a library must define (``.gnu.version_r``), such as ``GLIBC_2.34`` of
    ``libc.so.6``. A loader only warns if one that ``is_weak`` (``VER_FLG_WEAK``) is missing.
    """

    library: str
    version: str
    is_weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndefinedSymbol:
    """A dynamic symbol that another object must define, since a relocation refers to it.

    ``version`` and ``library`` are those of its version requirement, empty without one. A weak
    symbol may stay undefined.
    """

    name: str
    version: str = ""
    library: str = ""
    is_weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """An executable or a shared object, as the dynamic linker sees it.

    ``machine`` is the output of ``uname -m`` (``x86_64``, ``aarch64``), or ``EM_<number>``.
    ``search_path`` is DT_RUNPATH, or else DT_RPATH (``is_rpath``: needed libraries inherit it),
    with ``$ORIGIN`` not expanded; empty elements, which mean the current directory, are omitted.
    Symbols are in the order of the file.

    ``max_page_bytes`` is the largest page of a kernel that its segments are declared to be aligned
    for, and ``mappable_page_bytes`` the largest that their places allow, at most 64 KiB (0: it has
    nothing to map); ``needs_executable_stack``, which glibc 2.41 and later refuse for libraries
    that are opened at run time; ``static_tls_bytes`` are what it takes of the limited space for
    static thread-local storage (0: none).
    """

    machine: str
    soname: str
    interpreter: str
    needed: tuple[str, ...]
    search_path: tuple[str, ...]
    is_rpath: bool
    version_needs: tuple[VersionNeed, ...]
    version_definitions: tuple[str, ...]
    undefined: tuple[UndefinedSymbol, ...]
    defined: DefinedSymbols
    max_page_bytes: int = 0
    mappable_page_bytes: int = 0
    needs_executable_stack: bool = False
    static_tls_bytes: int = 0

    @property
    def needs_glibc(self) -> bool:
        """Whether it was linked with glibc. A libgcc_s for ARM has a version GLIBC_2.0 with any C
        library.
        """
        return "libc.so.6" in self.needed or any(
            each.version.startswith("GLIBC_") and not each.library.startswith("libgcc_s")
            for each in self.version_needs
        )
