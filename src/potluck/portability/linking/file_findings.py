"""Find what prevents a single ELF file from being mapped, independent of its libraries.

The kernel and the dynamic linker check these before any library is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from potluck.portability.elf.file import ElfFile
from potluck.portability.elf.image import SMALLEST_PAGE_BYTES
from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host

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


def needs_glibc(elf: ElfFile) -> bool:
    """Return whether a file was linked with glibc. A libgcc_s for ARM has a version GLIBC_2.0 with
    any C library.
    """
    return "libc.so.6" in elf.needed or any(
        each.version.startswith("GLIBC_") and not each.library.startswith("libgcc_s")
        for each in elf.version_needs
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
