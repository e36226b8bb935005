"""Read untrusted ZIP archives member by member, without unpacking them.

What an archive claims is validated before a byte is expanded: path traversal, links, duplicates,
overlapping members, and sizes that no wheel has are refused with ``WheelFileError``. Expanded bytes
are counted, whatever the header claims. (How such archives are made: D. Fifield, A better zip bomb,
WOOT 2019.)
"""

from __future__ import annotations

import io
import lzma
import mmap
import stat
import struct
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Self

from potluck.errors import WheelFileError

_MAX_DIRECTORY_BYTES = 32 << 20
_MAX_MEMBERS = 200_000
"""The largest wheels have some 20,000 members, of about 150 bytes each in the directory."""

_MAX_MEMBER_BYTES = 4 << 30
"""libtorch_cuda.so, the largest known library, is under 2 GiB."""

_SMALL_BYTES = 64 << 20
_MAX_RATIO = 100
"""Libraries compress to a third, and only tables of zeros to a thousandth: an archive may not
expand to more than ``_SMALL_BYTES`` plus a hundred times its size.
"""

_MAPPED_BYTES = 64 << 20
"""Larger members go to an unnamed temporary file, whose pages the kernel can evict."""

_CHUNK_BYTES = 1 << 20
_LOCAL_HEADER_BYTES = 30

BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""Exceptions of ``zipfile`` for malformed archives, unknown methods and negative offsets."""


class BoundedZip:
    """An open archive. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = _BoundedReads(path.open("rb"))
        try:
            self._archive = self._opened()
            self._members = {info.filename: info for info in self._checked(self._archive)}
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the members, without directories, in the archive's order."""
        return tuple(self._members)

    @property
    def offsets(self) -> Mapping[str, int]:
        """Return where each member's header begins, by name."""
        return {name: info.header_offset for name, info in self._members.items()}

    def starts_with(self, name: str, magic: bytes) -> bool:
        """Return whether a member begins with ``magic``; only these bytes are expanded."""
        if self._members[name].file_size < len(magic):
            return False
        return self.head(name, len(magic)) == magic

    def head(self, name: str, most_bytes: int) -> bytes:
        """Return the first bytes of a member; only these are expanded."""
        with self._reading(name) as stream:
            return stream.read(most_bytes)

    def read(self, name: str, *, most_bytes: int) -> bytes:
        """Return a whole member of at most ``most_bytes``."""
        if self._members[name].file_size > most_bytes:
            raise self._error(f"its {name} has more than {most_bytes} bytes")
        return b"".join(self._chunks(name))

    @contextmanager
    def data(self, name: str) -> Iterator[bytes | mmap.mmap]:
        """Yield a whole member, which is released at the end of the block: large ones are
        mapped.
        """
        if self._members[name].file_size <= _MAPPED_BYTES:
            yield self.read(name, most_bytes=_MAPPED_BYTES)
            return
        with tempfile.TemporaryFile() as target:
            for chunk in self._chunks(name):
                target.write(chunk)
            target.flush()
            with mmap.mmap(target.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                yield mapped

    def _opened(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self._file)
        except BROKEN as error:
            raise self._error(f"it is not a valid ZIP archive ({error})") from None

    def _checked(self, archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
        infos = archive.infolist()
        if len(infos) > _MAX_MEMBERS:
            raise self._error(f"it has {len(infos)} members")
        num_archive_bytes = self._path.stat().st_size
        most_bytes = _SMALL_BYTES + _MAX_RATIO * num_archive_bytes
        if sum(info.file_size for info in infos) > most_bytes:
            raise self._error(f"it claims to expand to more than {_MAX_RATIO} times its size")
        self._check_no_overlap(infos, num_archive_bytes)
        seen: set[str] = set()
        for info in infos:
            self._check_member(info)
            # Two Unicode forms of a name are the same file on some file systems.
            spelled = unicodedata.normalize("NFC", info.filename.rstrip("/"))
            if spelled in seen:
                raise self._error(f"it has two members with the name {info.filename!r}")
            seen.add(spelled)
            if not info.is_dir():
                yield info

    def _check_member(self, info: zipfile.ZipInfo) -> None:
        name = info.filename
        parts = name.rstrip("/").split("/")
        if info.orig_filename != name or "\\" in name or any(ord(char) < 32 for char in name):
            raise self._error(
                f"the name of its member {info.orig_filename!r} contains invalid characters"
            )
        if name.startswith("/") or ":" in parts[0] or not name.strip("/"):
            raise self._error(f"its member {name!r} has an absolute path")
        if any(part in ("", ".", "..") for part in parts):
            raise self._error(f"its member {name!r} has a path outside the directory")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise self._error(f"its member {name!r} is a link, which installers do not create")
        if info.flag_bits & 0x1:
            raise self._error(f"its member {name!r} is encrypted")
        if info.file_size > _MAX_MEMBER_BYTES:
            raise self._error(f"its member {name!r} claims to have {info.file_size} bytes")

    def _check_no_overlap(self, infos: list[zipfile.ZipInfo], num_archive_bytes: int) -> None:
        """Members must not overlap; the local header is at least as long as the name."""
        end = 0
        for info in sorted(infos, key=lambda each: each.header_offset):
            if info.header_offset < end:
                raise self._error(f"its member {info.filename!r} overlaps another")
            num_name_bytes = len(info.orig_filename)
            end = info.header_offset + _LOCAL_HEADER_BYTES + num_name_bytes + info.compress_size
        if end > num_archive_bytes:
            raise self._error("its members extend beyond its end")

    @contextmanager
    def _reading(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(self._members[name]) as stream:
                yield stream
        except BROKEN as error:
            raise self._error(f"its member {name!r} is malformed ({error})") from None

    def _chunks(self, name: str) -> Iterator[bytes]:
        """Yield as many bytes as the directory claims, and no more."""
        left = self._members[name].file_size
        with self._reading(name) as stream:
            while chunk := stream.read(min(_CHUNK_BYTES, left + 1)):
                left -= len(chunk)
                if left < 0:
                    break
                yield chunk
        if left:
            raise self._error(f"the size of its member {name!r} differs from the claimed one")

    def _error(self, problem: str) -> WheelFileError:
        return WheelFileError(str(self._path), problem)


class _BoundedReads(io.BufferedReader):
    """A file wrapper that prevents a claimed length from making ``zipfile`` read more than a
    directory at once.
    """

    def __init__(self, raw: io.BufferedReader) -> None:
        super().__init__(raw.detach())

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = _MAX_DIRECTORY_BYTES
        if size > _MAX_DIRECTORY_BYTES:
            raise ValueError("its directory is too large")
        return super().read(size)
