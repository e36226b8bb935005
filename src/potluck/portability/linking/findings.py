"""Explain to users why a file does not load: findings, each with a way to fix it.

The kernel and the dynamic linker check first whether the file can be mapped, before any library is
searched for; then come the linker's decisions.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import SMALLEST_PAGE_BYTES
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host
from potluck.portability.linking.link import Link, MissingLibrary, MissingSymbol, MissingVersion
from potluck.portability.linking.opened_libraries import (
    kind_of,
    known_providers,
    provider_of,
)
from potluck.portability.linking.promises import systems_with
from potluck.types.quantities import format_few

OPENED_BEFORE = "opened-before"
"""The linker refuses the file unless its package opens another of its files first."""
FROM_REQUIREMENT = "from-requirement"
"""The linker refuses the file unless a required wheel provides a library."""

ALLOCATOR_PAGE_SIZE = "allocator-page-size"
"""The file loads, but the process that loads it aborts."""

_NO_DECLARED_ALIGNMENT = (2, 35)
"""The first glibc whose linker ignores the declared alignment of segments, and only refuses those
that it cannot map (its bug 28688).
"""

_NO_EXECUTABLE_STACK = (2, 41)
"""The first glibc in which dlopen no longer makes the stack executable (its NEWS)."""

_STATIC_TLS_BYTES = 1664
"""The size that glibc reserves for libraries that are opened later (elf/dl-tls.c,
_dl_tls_static_surplus_init with the tunables' defaults; a constant of the same size before 2.32).
"""

_NUMBERS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})*")

_MAX_SYMBOLS = 20
"""Limit of findings about missing symbols per file; the others are counted."""
_MAX_NAMED_SYMBOLS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkContext:
    """``required`` are the distributions that the wheel requires on this host; ``label`` is the
    name of what is checked, such as ``warp-lang``. ``is_tegra``: the host is a Jetson.
    """

    host: Host
    required: tuple[str, ...]
    label: str
    is_tegra: bool = False


def link_findings(link: Link, context: LinkContext) -> tuple[Finding, ...]:
    """Return one for each missing library, version and symbol, in that order."""
    return (
        *_libraries(link, context),
        *(_version(each, context) for each in link.missing_versions),
        *_symbols(link, context),
    )


def _libraries(link: Link, context: LinkContext) -> Iterator[Finding]:
    for each in link.missing_libraries:
        name = ""
        if not each.path_in_tree:
            name = provider_of(each.library, each.sought, context.required)
        yield _library(each, name, context)


def _library(missing: MissingLibrary, required: str, context: LinkContext) -> Finding:
    library, host = missing.library, context.host
    code, severity, fix = "missing-library", Severity.FATAL, ""
    message = f"it needs {library}, which {host.name} does not have"
    if missing.path_in_tree:
        code, severity = OPENED_BEFORE, Severity.LIKELY
        message = (
            f"it needs {library}, which is not in the linker's search path"
            f" ({missing.path_in_tree}): the package has to open it first"
        )
    elif required:
        code, severity = FROM_REQUIREMENT, Severity.LIKELY
        message = f"it needs {library}, which {required} should provide"
        fix = f"also install {required}, as pip does without --no-deps"
    elif library.startswith(("libc.musl-", "ld-musl-")) or library == "libc.so":
        code = "other-c-library"
        message = f"it was built for musl, but {host.name} has glibc"
        fix = "use the manylinux wheel"
    elif not host.is_complete:
        severity = Severity.LIKELY
        message = f"it needs {library}, which {host.name} does not guarantee"
    else:
        fix = f"install the package of {host.name} that provides {library}"
        if kind := kind_of(library):
            fix = kind.fix_on(is_tegra=context.is_tegra)
        elif providers := known_providers(library):
            fix = f"install {' or '.join(providers)} from PyPI, which contains it"
    return Finding(
        code=code,
        severity=severity,
        message=message,
        file=missing.needed_by,
        library=library,
        fix=fix,
    )


def _version(missing: MissingVersion, context: LinkContext) -> Finding:
    symbols = f" ({format_few(missing.symbols, _MAX_NAMED_SYMBOLS)})" if missing.symbols else ""
    return Finding(
        code="missing-version",
        severity=Severity.FATAL,
        message=(
            f"it needs {missing.version} of {missing.library}{symbols},"
            f" {_instead(missing, context.host)}"
        ),
        file=missing.needed_by,
        library=missing.library,
        symbol=f"{missing.symbols[0]}@{missing.version}" if missing.symbols else missing.version,
        fix=_newer(missing.version, context),
    )


def _instead(missing: MissingVersion, host: Host) -> str:
    """Return what exists instead: the newest version with the same prefix, if it is the host's
    library.
    """
    if not missing.is_loaded:
        return "but does not list that library as needed: the linker aborts"
    if missing.path_in_tree:
        return f"but {missing.path_in_tree} does not define it"
    defined = next(
        (each.versions for each in host.libraries if each.soname == missing.library), frozenset()
    )
    newest = _newest(defined, missing.version.rpartition("_")[0] + "_")
    if newest and _numbers(newest) < _numbers(missing.version):
        return f"but {host.name} has at most {newest}"
    return f"but {host.name} does not define it"


@functools.lru_cache(maxsize=1024)  # many hosts have the same libraries
def _newest(versions: frozenset[str], prefix: str) -> str:
    """Return the newest version that begins with a prefix; empty if none does."""
    return max((each for each in versions if each.startswith(prefix)), key=_numbers, default="")


@functools.lru_cache(maxsize=1024)
def _numbers(version: str) -> tuple[int, ...]:
    numbers = version.rpartition("_")[2]
    return tuple(map(int, numbers.split("."))) if _NUMBERS.fullmatch(numbers) else ()


def _newer(version: str, context: LinkContext) -> str:
    """Return how to fix a missing version: a newer system, an older release, or a local build."""
    own = f"an older release of {context.label}, or one built from source there"
    numbers = _numbers(version)
    if version.startswith("GLIBC_") and len(numbers) > 1 and numbers[0] == 2:
        systems = systems_with((numbers[0], numbers[1]))
        if systems:
            return f"a newer system or base image ({', '.join(systems)}), {own}"
    if version.startswith(("GLIBCXX_", "CXXABI_", "GCC_")):
        return f"a newer libstdc++ and libgcc (conda's libstdcxx-ng, a newer system), {own}"
    return own


def _symbols(link: Link, context: LinkContext) -> Iterator[Finding]:
    by_file: dict[str, list[MissingSymbol]] = {}
    for each in link.missing_symbols:
        by_file.setdefault(each.needed_by, []).append(each)
    for file, missing in by_file.items():
        elsewhere = [each for each in missing if each.path_in_tree]
        nowhere = [each for each in missing if not each.path_in_tree]
        if elsewhere:
            paths = ", ".join(dict.fromkeys(each.path_in_tree for each in elsewhere))
            names = [each.symbol.name for each in elsewhere]
            yield Finding(
                code=OPENED_BEFORE,
                severity=Severity.LIKELY,
                message=(
                    f"it requires {format_few(names, _MAX_NAMED_SYMBOLS)} of {paths}, which it"
                    " does not list as needed: the package has to open that first, with"
                    " RTLD_GLOBAL"
                ),
                file=file,
                symbol=_spelled(elsewhere[0]),
            )
        for number, each in enumerate(nowhere[:_MAX_SYMBOLS], start=1):
            num_others = len(nowhere) - number if number == _MAX_SYMBOLS else 0
            yield _symbol(each, num_others, context)


def _symbol(missing: MissingSymbol, num_others: int, context: LinkContext) -> Finding:
    also = f" (and {num_others} other symbols)" if num_others > 0 else ""
    of = f" of {missing.symbol.library}" if missing.symbol.library else ""
    return Finding(
        code="missing-symbol",
        severity=Severity.FATAL,
        message=(
            f"it requires {_spelled(missing)}{of}{also}, which no library that it loads on"
            f" {context.host.name} defines"
        ),
        file=missing.needed_by,
        library=missing.symbol.library,
        symbol=_spelled(missing),
        fix=f"another release of {context.label}, or one built from source there",
    )


def _spelled(missing: MissingSymbol) -> str:
    symbol = missing.symbol
    return f"{symbol.name}@{symbol.version}" if symbol.version else symbol.name


def mapping_findings(path: str, elf: ElfFile, host: Host) -> Iterator[Finding]:
    """Yield why ``host`` would not map the file at ``path``, which is for its machine."""
    is_opened = not elf.interpreter or bool(elf.soname)
    is_declared = host.libc == "glibc" and host.libc_version < _NO_DECLARED_ALIGNMENT
    page_bytes = elf.max_page_bytes if is_declared else elf.mappable_page_bytes
    if host.page_bytes and 0 < page_bytes < host.page_bytes:
        yield Finding(
            code="page-size",
            severity=Severity.FATAL,
            message=(
                f"it is aligned for pages of {page_bytes} bytes, but {host.name} has"
                f" pages of {host.page_bytes}"
            ),
            file=path,
            fix="build it with -Wl,-z,max-page-size=65536, or use a kernel with smaller pages",
        )
    is_strict = host.libc == "glibc" and host.libc_version >= _NO_EXECUTABLE_STACK
    if elf.needs_executable_stack and is_opened and is_strict:
        yield Finding(
            code="executable-stack",
            severity=Severity.FATAL,
            message="it requires an executable stack, which glibc 2.41 and later refuse"
            f" ({host.name})",
            file=path,
            fix=(
                "use a release that was linked with -z noexecstack, clear the flag with patchelf"
                " --clear-execstack, or set GLIBC_TUNABLES=glibc.rtld.execstack=2"
            ),
        )
    if elf.static_tls_bytes > _STATIC_TLS_BYTES and is_opened and host.libc == "glibc":
        yield Finding(
            code="static-tls",
            severity=Severity.FATAL,
            message=(
                f"it requires {elf.static_tls_bytes} bytes of static thread-local storage, but"
                f" only {_STATIC_TLS_BYTES} are available after a program has started"
            ),
            file=path,
            fix="preload it with LD_PRELOAD",
        )


def allocator_findings(
    path: str, jemalloc_page_bytes: int | None, host: Host
) -> tuple[Finding, ...]:
    """Return why the jemalloc in a file does not work on ``host``. ``jemalloc_page_bytes`` is the
    largest page size that it supports: 0 if unknown, None without jemalloc.

    The file loads, but its first allocation fails, and programs then abort: a program written in
    Rust always does.
    """
    page_bytes = host.page_bytes or 0
    # Every jemalloc supports the smallest pages.
    if jemalloc_page_bytes is None or page_bytes <= (jemalloc_page_bytes or SMALLEST_PAGE_BYTES):
        return ()
    if not jemalloc_page_bytes:
        return (
            Finding(
                code=ALLOCATOR_PAGE_SIZE,
                severity=Severity.NOTE,
                message=(
                    f"it contains jemalloc, and {host.name} has pages of {page_bytes} bytes:"
                    " it is not known whether it was built for pages of that size"
                ),
                file=path,
            ),
        )
    return (
        Finding(
            code=ALLOCATOR_PAGE_SIZE,
            severity=Severity.FATAL,
            message=(
                f"it contains jemalloc built for pages of at most {jemalloc_page_bytes} bytes, but"
                f" {host.name} has pages of {page_bytes}: it cannot allocate memory, and"
                " programs that use it abort"
            ),
            file=path,
            fix=(
                "use a newer release, build it with JEMALLOC_SYS_WITH_LG_PAGE=16 (Rust) or"
                " jemalloc's --with-lg-page=16, or use a kernel with smaller pages"
            ),
        ),
    )


def other_machine_finding(path: str, elf: ElfFile, host: Host, others: Iterable[str]) -> Finding:
    """Return the finding about a file for another machine: a note if the package also has files for
    the host's machine.

    ``others`` are the machines that the package has files for.
    """
    is_also_here = host.machine in others
    return Finding(
        code="other-machine",
        severity=Severity.NOTE if is_also_here else Severity.FATAL,
        message=f"it is for {elf.machine}, but {host.name} is {host.machine}",
        file=path,
        fix="" if is_also_here else f"use the wheel for {host.machine}, or build from source",
    )


def other_c_library_finding(path: str, host: Host) -> Finding:
    """Return the finding about a file for glibc on a host with musl, which lacks many functions
    that glibc's headers use.
    """
    return Finding(
        code="other-c-library",
        severity=Severity.FATAL,
        message=f"it was built for glibc, but {host.name} has musl",
        file=path,
        fix="use the musllinux wheel, or build from source",
    )


def broken_finding(path: str, problem: str) -> Finding:
    """Return the finding about a file that begins like an ELF file but is malformed."""
    return Finding(
        code="broken-file",
        severity=Severity.FATAL,
        message=f"it cannot be read: {problem}",
        file=path,
        fix="download the wheel again; a truncated file has a different hash",
    )
