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
_CHANGED_HINT = "let nothing write to the model's files while it loads, and try again"


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


class ByteFile(Protocol):
    """Bytes that can be read in pieces: all that the readers of headers ask of a file."""

    @property
    def path(self) -> str:
        """What messages call it."""
        ...

    @property
    def size(self) -> int:
        """In bytes; it stays the same."""
        ...

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``.

        Raises ``ModelFileError`` if there are too few bytes or they cannot be read.
        """
        ...

    def release(self) -> None:
        """Give back what the next read can get again."""
        ...


class ReadableFile(ByteFile, Protocol):
    """A file of a model, wherever it is. ``num_bytes_read`` counts what was read so far."""

    @property
    def num_bytes_read(self) -> int:
        """In bytes."""
        ...

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the file is not the one that was opened."""
        ...

    def close(self) -> None:
        """End reading for good. Idempotent."""
        ...


OpenFile: TypeAlias = Callable[[Path], ReadableFile]
"""How the files of a model are opened; raises ``ModelNotFoundError`` when there is no such file."""


class ReadOnlyFile:
    """A regular file to read from; a ``ReadableFile``. For use by one thread at a time.

    It may lie on read-only media. ``size`` is that of the moment of opening, in bytes;
    ``num_bytes_read`` counts what was read. The kernel may drop at once what was read: a model is
    read once, and pages of files count against the limit of a control group
    (``posix_fadvise(2)``). Raises ``ModelNotFoundError`` when there is no such file,
    ``ModelFileError`` when it is not a regular one or cannot be opened.
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
                f"{path}: no such file", hint="check the path for spelling"
            ) from error
        except OSError as error:
            raise self._unreadable(error) from error
        except ValueError as error:
            raise ModelNotFoundError(f"{str(path)!r} cannot be a path ({error})") from error
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(self.path, "not a regular file", hint="give a file of a model")
        self.stamp = _stamp(status)
        """At the moment of opening."""
        self.size = status.st_size

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` (contiguous bytes) from ``offset``.

        Raises ``ModelFileError`` if there are too few bytes, if they cannot be read, or if another
        file has taken this one's place since ``release``; ``ValueError`` after ``close``.
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
                    f"and bytes up to {offset + len(out)} are needed",
                )
            done += count
        self.num_bytes_read += done
        self._drop_pages(descriptor, offset - _LARGEST_FOLIO_BYTES, offset + done)
        self._read_end = offset + done

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the file was written to, or replaced, since it was opened.

        All of its ``FileStamp`` is compared. So a new name or other permissions count as a change
        too, which is the price of seeing a write that sets its time back.
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
        if _stamp(status) != self.stamp:
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
        """End reading for good. Idempotent."""
        self._is_closed = True
        self.release()

    def _drop_pages(self, descriptor: int, start: int, end: int) -> None:
        start = max(0, start)
        with contextlib.suppress(OSError):  # advice, which a file system may not know
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)

    def _open(self) -> int:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        return os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)

    def _opened(self) -> int:
        """The descriptor, opened again where it was released."""
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
    """``num_bytes`` of ``file``; the caller has bounded them. Raises as ``read_into``."""
    data = bytearray(num_bytes)
    with memoryview(data) as view:
        file.read_into(offset, view)
    return bytes(data)


def quoted(text: str) -> str:
    """``text`` from a file as one short, printable word of a message."""
    shown = ascii(text[:80])
    if len(text) <= 80 and len(shown) <= 80:
        return shown
    return f"{shown[:60]}…{ascii(text[-16:])[-16:]}"


def _stamp(status: os.stat_result) -> FileStamp:
    return FileStamp(
        size=status.st_size,
        modified_nanoseconds=status.st_mtime_ns,
        changed_nanoseconds=status.st_ctime_ns,
        inode=status.st_ino,
    )
