"""What keeps a single ELF file from being mapped, whatever it links with.

The kernel and the dynamic linker look at these before any library is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from potluck.portability.elf_file import ElfFile
from potluck.portability.finding import Finding, Severity
from potluck.portability.host import Host

_NO_EXECUTABLE_STACK = (2, 41)
"""glibc from which on dlopen does not make the stack executable any more (its NEWS)."""

_STATIC_TLS_BYTES = 1664
"""What glibc keeps for libraries that are opened later (elf/dl-tls.c, _dl_tls_static_surplus_init
with the tunables' defaults; a constant of the same size before 2.32)."""


def mapping_findings(path: str, elf: ElfFile, host: Host) -> tuple[Finding, ...]:
    """Why ``host`` would not map the file at ``path``, which is for its machine."""
    return tuple(_findings(path, elf, host))


def _findings(path: str, elf: ElfFile, host: Host) -> Iterator[Finding]:
    is_opened = not elf.interpreter or bool(elf.soname)
    if host.page_bytes and 0 < elf.max_page_bytes < host.page_bytes:
        yield Finding(
            code="page-size",
            severity=Severity.FATAL,
            message=(
                f"it is laid out for pages of {elf.max_page_bytes} bytes, and {host.name} has pages"
                f" of {host.page_bytes}"
            ),
            file=path,
            way_out="build it with -Wl,-z,max-page-size=65536, or run a kernel with smaller pages",
        )
    is_strict = host.libc == "glibc" and host.libc_version >= _NO_EXECUTABLE_STACK
    if elf.needs_executable_stack and is_opened and is_strict:
        yield Finding(
            code="executable-stack",
            severity=Severity.FATAL,
            message=f"it wants an executable stack, which glibc refuses since 2.41 ({host.name})",
            file=path,
            way_out=(
                "take a release that was linked with -z noexecstack, clear the flag with"
                " patchelf --clear-execstack, or set GLIBC_TUNABLES=glibc.rtld.execstack=2"
            ),
        )
    if elf.static_tls_bytes > _STATIC_TLS_BYTES and is_opened and host.libc == "glibc":
        yield Finding(
            code="static-tls",
            severity=Severity.FATAL,
            message=(
                f"it wants {elf.static_tls_bytes} bytes of static thread-local storage, of which"
                f" {_STATIC_TLS_BYTES} are left when a program has started"
            ),
            file=path,
            way_out="name it in LD_PRELOAD",
        )


def other_machine_finding(path: str, elf: ElfFile, host: Host, others: Iterable[str]) -> Finding:
    """Of a file for another machine: a note where the package has some for the host's, too.

    ``others`` are the machines that the package has files for.
    """
    is_also_here = host.machine in others
    return Finding(
        code="other-machine",
        severity=Severity.NOTE if is_also_here else Severity.FATAL,
        message=f"it is for {elf.machine}, and {host.name} is {host.machine}",
        file=path,
        way_out="" if is_also_here else f"take the wheel for {host.machine}, or build from source",
    )


def other_c_library_finding(path: str, host: Host) -> Finding:
    """Of a file for glibc on a host with musl, which lacks much of what glibc's headers call."""
    return Finding(
        code="other-c-library",
        severity=Severity.FATAL,
        message=f"it was built for glibc, and {host.name} has musl",
        file=path,
        way_out="take the musllinux wheel, or build from source",
    )


def needs_glibc(elf: ElfFile) -> bool:
    """Whether a file was linked with glibc."""
    return "libc.so.6" in elf.needed or any(
        each.version.startswith("GLIBC_") for each in elf.version_needs
    )


def broken_finding(path: str, problem: str) -> Finding:
    """Of a file that begins as an ELF file and is none."""
    return Finding(
        code="broken-file",
        severity=Severity.FATAL,
        message=f"it cannot be read: {problem}",
        file=path,
        way_out="get the wheel again; a file that was cut short has another hash",
    )
