"""Reads Debian packages, without ``dpkg``: the files that one would install.

A package is an ``ar`` archive of ``debian-binary``, ``control.tar.*`` and ``data.tar.*`` (deb(5)).
"""

from __future__ import annotations

import io
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import PurePosixPath

_MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60  # name 16, time 12, owner 6, group 6, mode 8, size 10, end 2 (ar(5))
_SIZE = slice(48, 58)


class DebianPackageError(Exception):
    """The file is not a Debian package, or cannot be read here."""


def archive_members(package: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the ``ar`` archive's members.

    Raises ``DebianPackageError`` where it is no such archive, or ends early.
    """
    if not package.startswith(_MAGIC):
        raise DebianPackageError("not an ar archive")
    at = len(_MAGIC)
    while at < len(package):
        header = package[at : at + _HEADER_BYTES]
        try:
            size = int(header[_SIZE])
        except ValueError:
            raise DebianPackageError(f"no header of a member at byte {at}") from None
        at += _HEADER_BYTES
        content = package[at : at + size]
        if len(content) != size:
            raise DebianPackageError("the archive ends early")
        yield header[:16].decode("ascii").rstrip(" /"), content
        at += size + size % 2  # members begin at even bytes


def installed_files(package: bytes) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the regular files of the package: path from the root (``usr/include/…``), and content.

    Raises ``DebianPackageError`` where it is no package, or Python cannot decompress it.
    """
    for name, content in archive_members(package):
        if not name.startswith("data.tar"):
            continue
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                for member in archive:
                    file = archive.extractfile(member) if member.isreg() else None
                    if file is not None:
                        yield PurePosixPath(member.name.removeprefix("./")), file.read()
        except (tarfile.TarError, lzma.LZMAError, EOFError, OSError) as error:
            raise DebianPackageError(f"{name} cannot be read: {error}") from error
        return
    raise DebianPackageError("it has no data.tar")
