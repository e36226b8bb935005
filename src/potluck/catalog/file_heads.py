"""Cached heads of model files, recorded when they are first read.

A description, a profile, the weights and the vocabulary each read a file's header again, some of
them long after its bytes were fetched. The data that is read from the beginning of a file until it
is first released is stored in another file, after its SHA-256.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from potluck.errors import PotluckError
from potluck.formats.files import ReadableFile, ReadOnlyFile

_DIGEST_BYTES = 32
_PIECE_BYTES = 2**20

MOST_BYTES = 136 * 2**20
"""More than the maximum size of a header (``formats``)."""

_MOST_SKIPPED_BYTES = 16 * 2**20
"""The maximum gap between two reads of a header: arrays of numbers that have not been requested
yet. The scores of a vocabulary take a megabyte."""


class FileHead:
    """The first ``num_bytes`` of a file, stored at ``path``. Not thread-safe.

    Raise ``PotluckError`` if no valid data is stored there.
    """

    def __init__(self, path: Path) -> None:
        self._file = ReadOnlyFile(path)
        self.num_bytes = self._file.size - _DIGEST_BYTES
        try:
            self._check()
        except BaseException:
            self._file.close()
            raise

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``. Raise ``ModelFileError`` on failure."""
        self._file.read_into(_DIGEST_BYTES + offset, out)

    def release(self) -> None:
        """Close the descriptor until the next read."""
        self._file.release()

    def close(self) -> None:
        """Close it permanently. Idempotent."""
        self._file.close()

    def _check(self) -> None:
        if not 0 <= self.num_bytes <= MOST_BYTES:
            raise PotluckError(f"{self._file.path} is not the head of a file")
        digest = hashlib.sha256()
        kept = bytearray(_DIGEST_BYTES)
        self._file.read_into(0, memoryview(kept))
        for offset in range(0, self.num_bytes, _PIECE_BYTES):
            piece = bytearray(min(_PIECE_BYTES, self.num_bytes - offset))
            self.read_into(offset, memoryview(piece))
            digest.update(piece)
        if digest.digest() != kept:
            raise PotluckError(f"{self._file.path} is damaged")


def open_head(path: Path, most_bytes: int) -> FileHead | None:
    """Open the head stored at ``path``; None if it is missing, invalid or above ``most_bytes``."""
    try:
        head = FileHead(path)
    except PotluckError:
        return None
    if head.num_bytes > most_bytes:
        head.close()
        return None
    return head


class HeadRecorder:
    """Stores the data that is read from the beginning of a file, if it can be written."""

    def __init__(self, path: Path, *, num_more_bytes: int = 0) -> None:
        """Record to ``path``; ``num_more_bytes`` more bytes are read and stored at the end."""
        self._path = path
        self._num_more_bytes = num_more_bytes
        self._temporary = path.with_name(f"{path.name}.{os.getpid()}-{token_hex(4)}.partial")
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._num_bytes = 0
        self._is_over = False

    def take(self, source: ReadableFile, offset: int, data: memoryview) -> None:
        """Record data that was read from ``source``, and read the part that was skipped before."""
        end = offset + len(data)
        gap = offset - self._num_bytes
        if self._is_over or end <= self._num_bytes or end > MOST_BYTES or gap > _MOST_SKIPPED_BYTES:
            return
        try:
            while self._num_bytes < offset:
                piece = bytearray(min(_PIECE_BYTES, offset - self._num_bytes))
                source.read_into(self._num_bytes, memoryview(piece))
                self._append(memoryview(piece))
            self._append(data[self._num_bytes - offset :])
        except OSError:
            self.close()

    def finish(self, source: ReadableFile) -> None:
        """Store the recorded data and stop. Idempotent. Raise the errors of ``source``."""
        if self._is_over or self._file is None:
            self.close()
            return
        try:
            more = bytearray(min(self._num_more_bytes, source.size - self._num_bytes))
            source.read_into(self._num_bytes, memoryview(more))
            self._append(memoryview(more))
            self._file.seek(0)
            self._file.write(self._digest.digest())
            self._file.close()
            self._temporary.replace(self._path)
        except OSError:
            pass
        self.close()

    def close(self) -> None:
        """Stop recording. Idempotent."""
        self._is_over = True
        if self._file is not None:
            with closing(self._file):
                self._file = None
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)

    def _append(self, data: memoryview) -> None:
        if self._file is None:
            self._temporary.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("xb")
            self._file.write(bytes(_DIGEST_BYTES))
        self._file.write(data)
        self._digest.update(data)
        self._num_bytes += len(data)
