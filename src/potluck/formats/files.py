"""Files read in pieces.

Nothing here maps a file: pages of a mapping that was truncated by another process kill the reader
with SIGBUS, while ``pread`` returns less, which becomes an error that says so. It also means that
only what is asked for is ever held.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from potluck.errors import ModelFileError, ModelNotFoundError

_LARGEST_FOLIO_BYTES = 2 * 2**20
"""The page cache keeps pages in groups (folios) of up to this size on most machines, and drops them
whole or not at all: one that the read before ended in can go now."""

_READING_HINT = "check that the file can be read and that the disk is sound"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """What the file system says of a file's contents (``inode(7)``).

    Whoever writes to a file may set its ``modified_nanoseconds`` back, but not
    ``changed_nanoseconds``.
    """

    size: int
    modified_nanoseconds: int
    changed_nanoseconds: int
    inode: int


class ReadableFile(Protocol):
    """Bytes that can be read in pieces, wherever they are. ``path`` is what messages call them.

    ``num_bytes_read`` counts what was read so far. Reading what lies past ``size`` raises
    ``ModelFileError``.
    """

    path: str
    size: int
    num_bytes_read: int

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``."""
        ...

    def read(self, offset: int, num_bytes: int) -> bytes:
        """As ``read_into``, into new bytes; the caller has bounded ``num_bytes``."""
        ...

    def close(self) -> None:
        """Release what is held. Idempotent."""
        ...


OpenFile: TypeAlias = Callable[[Path], ReadableFile]
"""How the files of a model are opened; raises ``ModelNotFoundError`` when there is no such file."""


class ReadOnlyFile:
    """A regular file open for reading; it may lie on read-only media. For use by one thread.

    ``size`` is that of the moment of opening, in bytes; ``num_bytes_read`` counts what was read.
    The kernel may drop at once what was read: a model is read once, and pages of files count
    against the limit of a control group (``posix_fadvise(2)``). Raises ``ModelNotFoundError`` when
    there is no such file, ``ModelFileError`` when it is not a regular one or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags)
        except FileNotFoundError as error:
            raise ModelNotFoundError(
                f"{path}: no such file", hint="check the path for spelling"
            ) from error
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise ModelNotFoundError(f"{str(path)!r} cannot be a path ({error})") from error
        self._descriptor: int | None = descriptor
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(self.path, "not a regular file", hint="give a file of a model")
        self.size = status.st_size
        self.num_bytes_read = 0

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``; ``ModelFileError`` if that is too short.

        Raises ``ValueError`` after ``close``.
        """
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        done = 0
        while done < len(out):
            try:
                count = os.preadv(self._descriptor, [out[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(error) from error
            if count == 0:
                raise ModelFileError(
                    self.path,
                    f"truncated: it ends at byte {offset + done}, "
                    f"and bytes up to {offset + len(out)} are needed",
                )
            done += count
        self.num_bytes_read += done
        start = max(0, offset - _LARGEST_FOLIO_BYTES)
        with contextlib.suppress(OSError):  # advice, which a file system may not know
            os.posix_fadvise(self._descriptor, start, offset + done - start, os.POSIX_FADV_DONTNEED)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """As ``read_into``, into new bytes; the caller has bounded ``num_bytes``."""
        data = bytearray(num_bytes)
        with memoryview(data) as view:
            self.read_into(offset, view)
        return bytes(data)

    def stamp(self) -> FileStamp:
        """What tells this file from another one, or from itself after it was written to.

        Raises ``ValueError`` after ``close``.
        """
        if self._descriptor is None:
            raise ValueError(f"{self.path} is closed")
        status = os.fstat(self._descriptor)
        return FileStamp(
            size=status.st_size,
            modified_nanoseconds=status.st_mtime_ns,
            changed_nanoseconds=status.st_ctime_ns,
            inode=status.st_ino,
        )

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _unreadable(self, error: OSError) -> ModelFileError:
        return ModelFileError(self.path, f"cannot be read: {error.strerror}", hint=_READING_HINT)


def quoted(text: str) -> str:
    """``text`` from a file as one short, printable word of a message."""
    shown = ascii(text)
    return shown if len(shown) <= 80 else f"{shown[:60]}…{shown[-16:]}"
