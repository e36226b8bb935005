"""What an ELF file needs of a host, and what it gives: values, read by ``elf_reader``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionNeed:
    """A version of a library that must be defined there (``.gnu.version_r``), as ``GLIBC_2.34`` of
    ``libc.so.6``. A loader only warns where one that ``is_weak`` (``VER_FLG_WEAK``) is missing.
    """

    library: str
    version: str
    is_weak: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UndefinedSymbol:
    """A dynamic symbol that another object must define: some relocation asks for it.

    ``version`` and ``library`` are those of its version need, empty without one. A weak symbol may
    stay undefined.
    """

    name: str
    version: str = ""
    library: str = ""
    is_weak: bool = False
    is_function: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinedSymbol:
    """A dynamic symbol that the object exports and that its hash table finds.

    ``version`` is empty without one, or if it is the base definition: then the symbol answers to
    any version that is asked for. A symbol whose version is no default (``name@VERSION``) is found
    by those who ask for that version alone.
    """

    name: str
    version: str = ""
    is_default: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFile:
    """An executable or a shared object, as the dynamic linker sees it.

    ``machine`` is as ``uname -m`` says it (``x86_64``, ``aarch64``), or ``EM_<number>``.
    ``search_path`` is DT_RUNPATH, or else DT_RPATH (``is_rpath``: it is handed down to what is
    needed), ``$ORIGIN`` and all; empty elements, which mean the current directory, are left out.
    ``features`` are what notes say that the CPU must have (``x86-64-v3``). Symbols are in the order
    of the file.

    ``max_page_bytes`` is the largest page of a kernel that it can be mapped with (0: it has nothing
    to map); ``needs_executable_stack``, which glibc 2.41 and later refuse to give to what is opened
    at run time; ``static_tls_bytes`` are what it takes of the little space that is left for
    libraries with static thread-local storage (0: it needs none there).
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
    defined: tuple[DefinedSymbol, ...]
    features: tuple[str, ...]
    max_page_bytes: int = 0
    needs_executable_stack: bool = False
    static_tls_bytes: int = 0
