"""Find files that are named like shared libraries but are not: the dynamic linker refuses them.

Their first bytes identify what they are. A text file that lists libraries for the link editor (a
linker script) is used by builds, and is never loaded.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePosixPath

from potluck.portability.finding import Finding, Severity
from potluck.portability.hosts.host import Host

HEAD_BYTES = 4096
"""Number of bytes that are enough to identify a file: linker scripts begin with a comment."""

_LIBRARY_NAME = re.compile(r".+\.so(\.\d+)*")
_OTHER_NAME = re.compile(r".+\.(dylib|dll|pyd)", re.IGNORECASE)

_MACH_O = (
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"\xca\xfe\xba\xbf",
)
"""<mach-o/loader.h> and <mach-o/fat.h>: 32 and 64 bits, either byte order, several machines."""

_SCRIPT = re.compile(rb"^[^\S\n]*(?:INPUT|GROUP|OUTPUT_FORMAT)\s*\(", re.MULTILINE)
"""The commands with which a linker script that replaces a library begins (ld's manual, "Commands
Dealing with Files").
"""


class FileKind(enum.StrEnum):
    """The kind of a file that is not a shared library, as messages name it."""

    EMPTY = "an empty file"
    MACH_O = "a Mach-O file, which macOS loads"
    PE = "a PE file, which Windows loads"
    SCRIPT = "a script for the link editor"
    ARCHIVE = "an archive for the link editor"
    OBJECT = "an ELF file that no dynamic linker loads (an object file, or a core dump)"
    OTHER = "not an ELF file"


@dataclass(frozen=True, slots=True, kw_only=True)
class MisnamedFile:
    """A file named like a shared library of any system, at its installed path."""

    path: str
    kind: FileKind


def is_library_name(path: str) -> bool:
    """Return whether a file is named like a shared library: ``libx.so.1``, ``_core.abi3.so``."""
    return _LIBRARY_NAME.fullmatch(PurePosixPath(path).name) is not None


def is_other_library_name(path: str) -> bool:
    """Return whether a file is named like a shared library of macOS or Windows."""
    return _OTHER_NAME.fullmatch(PurePosixPath(path).name) is not None


def kind_of_head(head: bytes) -> FileKind:
    """Return what a file that is not an ELF file begins as, from its first ``HEAD_BYTES``."""
    if not head:
        return FileKind.EMPTY
    if head.startswith(_MACH_O):
        return FileKind.MACH_O
    if head.startswith(b"MZ"):
        return FileKind.PE
    if head.startswith((b"!<arch>\n", b"!<thin>\n")):
        return FileKind.ARCHIVE
    is_text = b"\0" not in head
    return FileKind.SCRIPT if is_text and _SCRIPT.search(head) else FileKind.OTHER


def misnamed_finding(file: MisnamedFile, host: Host, machines: Collection[str]) -> Finding | None:
    """Return the finding about a file on a host. ``machines`` are those for which the package has
    ELF files: in such a package, a file for another system is not meant for this host, and None is
    returned if its name says so, too.
    """
    if is_other_library_name(file.path):
        if machines:
            return None
        return Finding(
            code="other-system",
            severity=Severity.LIMIT,
            message=f"it is {file.kind}, and no file of the package is for Linux",
            file=file.path,
            feature="its native code",
            fix=f"use the wheel for Linux on {host.machine}, or build from source",
        )
    severity, fix = Severity.FATAL, "download the wheel again, or use another release"
    message = f"it is named like a shared library, but it is {file.kind}"
    if file.kind in (FileKind.MACH_O, FileKind.PE):
        fix = f"use the wheel for Linux on {host.machine}, or build from source"
        if host.machine in machines:
            severity, fix = Severity.NOTE, ""
    elif file.kind is FileKind.SCRIPT:
        severity, fix = Severity.NOTE, ""
    return Finding(
        code="not-a-library", severity=severity, message=message, file=file.path, fix=fix
    )
