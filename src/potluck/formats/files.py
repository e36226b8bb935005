"""Read files in pieces.

Files are not mapped here: if another process truncates a mapped file, the reader is killed by
SIGBUS, whereas ``pread`` returns fewer bytes, which becomes a proper error. In addition, only the
requested data is held in memory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from potluck.errors import ModelFileError, ModelNotFoundError

_LARGEST_FOLIO_BYTES = 2 * 2**20
"""The page cache keeps pages in groups (folios) of up to this size on most machines, and can only
drop whole groups: the group in which the previous read ended can be dropped now."""

_PIECE_BYTES = 2**20

_READING_HINT = "check that the file is readable and that the disk has no errors"
_CHANGED_HINT = "make sure that nothing writes to the model's files while it loads, and try again"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """The file system's data about a file's contents (``inode(7)``).

    A program that writes to a file can reset its ``modified_nanoseconds`` back, but not
    ``changed_nanoseconds``.
    """

    size: int
    modified_nanoseconds: int
    changed_nanoseconds: int
    inode: int


class ByteFile(Protocol):
    """Bytes that can be read in pieces, the interface that header readers need."""

    @property
    def path(self) -> str:
        """Its name in messages."""
        ...

    @property
    def size(self) -> int:
        """The size in bytes, which never changes."""
        ...

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``.

        Raise ``ModelFileError`` if there are too few bytes or they cannot be read.
        """
        ...

    def release(self) -> None:
        """Release resources that the next read can acquire again."""
        ...


class ReadableFile(ByteFile, Protocol):
    """A file of a model, at any location. ``num_bytes_read`` counts the bytes read so far."""

    @property
    def num_bytes_read(self) -> int:
        """In bytes."""
        ...

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the file is not the one that was opened."""
        ...

    def close(self) -> None:
        """Close it permanently. Idempotent."""
        ...


OpenFile: TypeAlias = Callable[[Path], ReadableFile]
"""Opens the files of a model. Raises ``ModelNotFoundError`` if there is no such file."""


class ReadOnlyFile:
    """A regular file to read from; a ``ReadableFile``. Not thread-safe.

    It may be on read-only media. ``size`` is its size in bytes when it was opened, and
    ``num_bytes_read`` counts the bytes that were read. The kernel is advised to drop pages after
    they are read (``posix_fadvise(2)``), because a model is read once, and file pages count against
    the limit of a control group. Raise ``ModelNotFoundError`` if there is no such file, and
    ``ModelFileError`` if it is not a regular file or cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._path = path.absolute()
        self._is_closed = False
        self._read_end = 0
        self.num_bytes_read = 0
        try:
            self._descriptor: int | None = self._open()
        except FileNotFoundError as error:
            raise ModelNotFoundError(
                f"{path}: no such file", hint="check the spelling of the path"
            ) from error
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise ModelNotFoundError(f"{str(path)!r} is not a valid path ({error})") from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(self.path, "not a regular file", hint="give a model file")
        self.stamp = stamp_of(status)
        """The stamp when the file was opened."""
        self.size = status.st_size

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``.

        Raise ``ModelFileError`` if there are too few bytes, if they cannot be read, or if the file
        was replaced since ``release``, and ``ValueError`` after ``close``.
        """
        descriptor = self._opened()
        done = 0
        while done < len(out):
            try:
                count = os.preadv(descriptor, [out[done:]], offset + done)
            except OSError as error:
                raise self._unreadable(error) from error
            if count == 0:
                self.check_unchanged()
                raise ModelFileError(
                    self.path,
                    f"truncated: it ends at byte {self.size}, "
                    f"but must have at least {offset + len(out)} bytes",
                )
            done += count
        self.num_bytes_read += done
        self._drop_pages(descriptor, offset - _LARGEST_FOLIO_BYTES, offset + done)
        self._read_end = offset + done

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the file was written to, or replaced, since it was opened.

        The whole ``FileStamp`` is compared, so that writes that reset the modification time are
        detected too. As a consequence, renaming and changed permissions also count as a change.
        """
        descriptor = self._descriptor
        try:
            status = self._path.stat() if descriptor is None else os.fstat(descriptor)
        except FileNotFoundError as error:
            raise self._changed("it was removed") from error
        except OSError as error:
            raise self._unreadable(error) from error
        if status.st_size < self.size:
            raise self._changed(f"it shrank from {self.size} to {status.st_size} bytes")
        if stamp_of(status) != self.stamp:
            raise self._changed("the file changed")

    def release(self) -> None:
        """Close the descriptor; the next read opens the same file again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        last = self._read_end
        self._drop_pages(descriptor, last - _LARGEST_FOLIO_BYTES, last + _LARGEST_FOLIO_BYTES)
        os.close(descriptor)

    def close(self) -> None:
        """Close it permanently. Idempotent."""
        self._is_closed = True
        self.release()

    def _drop_pages(self, descriptor: int, start: int, end: int) -> None:
        start = max(0, start)
        with contextlib.suppress(OSError):  # advice that a file system may not support
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def _open(self) -> int:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def _opened(self) -> int:
        """Return the descriptor, opening the file again if it was released."""
        if self._is_closed:
            raise ValueError(f"{self.path} is closed")
        if self._descriptor is None:
            try:
                self._descriptor = self._open()
            except FileNotFoundError as error:
                raise self._changed("it was removed") from error
            except OSError as error:
                raise self._unreadable(error) from error
            try:
                self.check_unchanged()
            except ModelFileError:
                self.release()
                raise
        return self._descriptor

    def _changed(self, how: str) -> ModelFileError:
        return ModelFileError(self.path, f"{how} while it was read", hint=_CHANGED_HINT)

    def _unreadable(self, error: OSError) -> ModelFileError:
        return ModelFileError(self.path, f"cannot be read: {error.strerror}", hint=_READING_HINT)


def read_bytes(file: ByteFile, offset: int, num_bytes: int) -> bytes:
    """Return ``num_bytes`` of ``file``, a number that the caller has checked.

    Raise the errors of ``read_into``.
    """
    data = bytearray(num_bytes)
    with memoryview(data) as view:
        file.read_into(offset, view)
    return bytes(data)


def read_pieces(file: ByteFile, start: int, end: int) -> Iterator[bytes]:
    """Yield the bytes ``[start, end)`` of ``file`` in pieces of at most 1 MiB.

    Raise the errors of ``read_into``.
    """
    for offset in range(start, end, _PIECE_BYTES):
        yield read_bytes(file, offset, min(_PIECE_BYTES, end - offset))


def quoted(text: str) -> str:
    """Quote ``text`` from a file for messages, as a short printable string."""
    shown = ascii(text[:80])
    if len(text) <= 80 and len(shown) <= 80:
        return shown
    return f"{shown[:60]}…{ascii(text[-16:])[-16:]}"


def stamp_of(status: os.stat_result) -> FileStamp:
    """Return the stamp of a file, which changes with its contents."""
    return FileStamp(
        size=status.st_size,
        modified_nanoseconds=status.st_mtime_ns,
        changed_nanoseconds=status.st_ctime_ns,
        inode=status.st_ino,
    )
