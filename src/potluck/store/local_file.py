"""A file elsewhere on this disk, outside of the store, whose content is known."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from potluck.errors import DamagedChunkError, ModelFileError
from potluck.formats.files import FileStamp, stamp_of
from potluck.types.content import CHUNK_BYTES, ChunkRuns, FileContent, digest_at

_CHANGED_HINT = (
    "make sure that nothing writes to the model's files while they are in use, and try again"
)


class LocalFile:
    """A whole file on this disk, to read from. Thread-safe.

    ``digests`` are those of all chunks, as found by ``KnownFiles``; None for a file that is only
    claimed to have this content, such as one in huggingface_hub's cache. Raise ``ModelFileError``
    if the file cannot be opened, does not match ``stamp``, or has a different size.
    """

    def __init__(
        self,
        path: Path,
        content: FileContent,
        *,
        digests: bytes | None = None,
        stamp: FileStamp | None = None,
    ) -> None:
        self.path = path
        self.content = content
        self.label = str(path)
        self.all_digests = digests
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ModelFileError(self.label, f"cannot be read: {error.strerror}") from error
        self._stamp = stamp or stamp_of(os.fstat(self._descriptor))
        try:
            self.check_unchanged()
            if self._stamp.size != content.num_bytes:
                raise self._changed()
        except BaseException:
            self.close()
            raise

    @property
    def is_verified(self) -> bool:
        """Return whether all of the file was hashed, and matches the SHA-256."""
        return self.all_digests is not None

    def digest(self, chunk: int) -> bytes | None:
        """Return the digest that a chunk must have; None if unknown."""
        return None if self.all_digests is None else digest_at(self.all_digests, chunk)

    def held(self) -> ChunkRuns:
        """Return the run of all chunks."""
        return ((0, self.content.num_chunks),) if self.content.num_chunks else ()

    def read_chunk(self, chunk: int) -> bytes:
        """Return a chunk.

        Raise ``ModelFileError`` if the file has changed, and ``DamagedChunkError`` if it has not,
        but the chunk does not match its digest.
        """
        num_bytes = self.content.chunk_bytes(chunk)
        try:
            data = os.pread(self._descriptor, num_bytes, chunk * CHUNK_BYTES)
        except OSError as error:
            raise ModelFileError(self.label, f"cannot be read: {error.strerror}") from error
        self.check_unchanged()
        expected = self.digest(chunk)
        if len(data) != num_bytes or (
            expected is not None and hashlib.sha256(data).digest() != expected
        ):
            raise DamagedChunkError(self.label, chunk, "does not match its SHA-256")
        return data

    def check_unchanged(self) -> None:
        """Raise ``ModelFileError`` if the file was written to, or replaced, since it was hashed."""
        try:
            is_same = stamp_of(os.fstat(self._descriptor)) == self._stamp == self._stamp_at_path()
        except OSError as error:
            raise ModelFileError(self.label, f"cannot be read: {error.strerror}") from error
        if not is_same:
            raise self._changed()

    def descriptor(self) -> int:
        """Return a descriptor to read from, which this object owns and closes."""
        return self._descriptor

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _stamp_at_path(self) -> FileStamp:
        return stamp_of(self.path.stat())

    def _changed(self) -> ModelFileError:
        return ModelFileError(self.label, "the file changed", hint=_CHANGED_HINT)
