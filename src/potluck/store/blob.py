"""One file in the store, whole or in part."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, TypeAlias

from potluck.errors import DamagedChunkError, StoreFullError
from potluck.store.index import BlobIndex, ChunkState
from potluck.types.content import CHUNK_BYTES, ChunkRuns, digest_at, runs_of

Bytes: TypeAlias = bytes | bytearray | memoryview

_SYNC_CHUNKS = 64
"""Bytes written between two syncs: limits the loss from a power failure, and the duration of a
sync."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class Room(Protocol):
    """Decides how much more may be stored."""

    def take(self, num_bytes: int) -> None:
        """Count bytes that are about to be stored; raise ``StoreFullError`` if there is no room."""
        ...

    def relieve_disk(self) -> bool:
        """Remove something unused, as the disk is full; return False if there is nothing."""
        ...


class Blob:
    """A file in the store; what it holds stays until ``close``. Thread-safe.

    Other processes may have the same file open, and add to it: what one of them has written, all of
    them can read. The lock that prevents its removal goes with ``descriptor``: a process to which
    it is passed keeps the file as well.
    """

    def __init__(self, data: Path, index: BlobIndex, room: Room) -> None:
        """Open the file ``data``; ``index`` belongs to the blob from then on.

        Raise ``FileNotFoundError`` if it was just removed, and ``ValueError`` if its size is wrong.
        """
        self.content = index.content
        self.label = index.label
        """The name of the file in messages."""
        self._path = data
        self._index = index
        self._room = room
        self._lock = threading.Lock()
        self._unsynced: list[int] = []
        self._writing: int | None = None
        self._descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_SH)
            status = os.fstat(self._descriptor)
            if not os.path.samestat(status, data.stat()):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(data))
            if status.st_size != self.content.num_bytes:
                raise ValueError(f"{data}: the file size is wrong")
            self.touch()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def is_verified(self) -> bool:
        """Return whether the digests are those of a file verified by its SHA-256, and not only
        claimed.
        """
        return self._index.is_verified

    @property
    def is_whole(self) -> bool:
        """Return whether every chunk is held."""
        return all(state & ChunkState.HELD for state in self._index.states())

    @property
    def all_digests(self) -> bytes | None:
        """Return the digests of all chunks, one after the other; None unless all of them are
        known.
        """
        if all(state & ChunkState.DIGEST for state in self._index.states()):
            return self._index.digests()
        return None

    def held(self) -> ChunkRuns:
        """Return which chunks can be read, whichever process wrote them."""
        states = self._index.states()
        return runs_of(i for i, state in enumerate(states) if state & ChunkState.HELD)

    def holds(self, chunk: int) -> bool:
        """Return whether one chunk can be read."""
        return bool(self._index.state(chunk) & ChunkState.HELD)

    def digest(self, chunk: int) -> bytes | None:
        """Return the digest that a chunk has, or must have; None if unknown."""
        if self._index.state(chunk) & ChunkState.DIGEST:
            return self._index.digest(chunk)
        return None

    def write_chunk(self, chunk: int, data: Bytes, digest: bytes | None = None) -> bytes:
        """Store a chunk, and return its digest. When this returns, all processes can read it.

        ``digest`` is its SHA-256, if the caller has already computed it. Raise
        ``DamagedChunkError`` if the chunk must have another digest, or is held and has another one,
        and ``StoreFullError`` if there is no room for it; nothing is stored then.
        """
        self._check_size(chunk, data)
        if digest is None:
            digest = hashlib.sha256(data).digest()
        if self._is_kept(chunk, digest):
            return digest
        self._room.take(len(data))
        try:
            with self._writing_alone():
                if not self._is_kept(chunk, digest):
                    self._write(chunk * CHUNK_BYTES, memoryview(data))
                    self._index.set_digest(chunk, digest)
                    self._index.set_state(chunk, ChunkState.DIGEST | ChunkState.HELD)
                    self._unsynced.append(chunk)
                is_sync_due = len(self._unsynced) >= _SYNC_CHUNKS
            if is_sync_due:
                self.sync()
        except OSError as error:
            raise _not_kept(self._path, error) from error
        return digest

    def read_chunk(self, chunk: int) -> bytes:
        """Return a chunk that is held.

        Raise ``DamagedChunkError`` if it is not, or is damaged; then it is no longer held.
        """
        num_bytes = self.content.chunk_bytes(chunk)
        if not self.holds(chunk):
            raise DamagedChunkError(
                self.label, chunk, "is not in the store", hint="download it again"
            )
        try:
            data = os.pread(self._descriptor, num_bytes, chunk * CHUNK_BYTES)
        except OSError as error:
            self._drop(chunk)
            raise DamagedChunkError(
                self.label, chunk, f"cannot be read: {error.strerror}", hint="download it again"
            ) from error
        if hashlib.sha256(data).digest() != self._index.digest(chunk):
            self._drop(chunk)
            raise DamagedChunkError(
                self.label, chunk, f"is damaged in {self._path}", hint="download it again"
            )
        return data

    def descriptor(self) -> int:
        """Return a descriptor to read from, which the blob owns and closes.

        Only bytes of chunks that are held are valid. To outlive the blob it must be duplicated;
        passing it to another process does that.
        """
        return self._descriptor

    def mark_verified(self, all_digests: bytes) -> None:
        """Record the digests of a file that was verified by its SHA-256.

        Chunks that are held and differ are dropped.
        """
        if len(all_digests) != self.content.digests_bytes:
            raise ValueError(f"{len(all_digests)} bytes of digests for {self.content}")
        with self._writing_alone():
            for chunk, state in enumerate(self._index.states()):
                verified = digest_at(all_digests, chunk)
                if state & ChunkState.HELD and self._index.digest(chunk) != verified:
                    self._index.set_state(chunk, ChunkState.NONE)
            self._index.set_verified(all_digests)

    def touch(self) -> None:
        """Count as used now: the least recently used files are removed first."""
        with contextlib.suppress(OSError):
            os.utime(self._descriptor)

    def sync(self) -> None:
        """Return when this blob's data is on disk and survives a power failure.

        Raise ``StoreFullError`` if it could not be written; it is no longer held then.
        """
        with self._lock:
            chunks, self._unsynced = self._unsynced, []
        if not chunks:
            return
        problem = None
        try:
            os.fdatasync(self._descriptor)
            self._index.sync()
        except OSError as error:
            problem = error
        with self._writing_alone():
            for chunk in chunks:
                state = self._index.state(chunk)
                if problem is not None:
                    self._index.set_state(chunk, state & ChunkState.DIGEST)
                elif state & ChunkState.HELD:
                    self._index.set_state(chunk, state | ChunkState.SYNCED)
        if problem is not None:
            raise _not_kept(self._path, problem) from problem

    def recover(self) -> ChunkRuns:
        """Drop chunks that did not reach the disk before the machine went down, and return them."""
        if self._index.is_from_this_boot:
            return ()
        lost = []
        with self._writing_alone():
            if self._index.is_from_this_boot:  # another process was first
                return ()
            for chunk, state in enumerate(self._index.states()):
                if not state & ChunkState.HELD or state & ChunkState.SYNCED:
                    continue
                num_bytes = self.content.chunk_bytes(chunk)
                data = b""
                with contextlib.suppress(OSError):  # a chunk that cannot be read is lost, too
                    data = os.pread(self._descriptor, num_bytes, chunk * CHUNK_BYTES)
                if hashlib.sha256(data).digest() == self._index.digest(chunk):
                    self._unsynced.append(chunk)
                else:
                    lost.append(chunk)
                    self._forget(chunk)
            self._index.set_boot()
        with contextlib.suppress(StoreFullError):  # what could not be written is not held
            self.sync()
        return runs_of(lost)

    def remove(self) -> None:
        """Remove the file from the store, even if it is in use: its bytes are wrong."""
        with self._writing_alone():
            self._index.clear()
            self._unsynced.clear()
            self._path.unlink(missing_ok=True)
            self._path.with_suffix(INDEX).unlink(missing_ok=True)

    def close(self) -> None:
        """Allow the store to remove the file when it needs room. Idempotent."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(StoreFullError, OSError):  # what could not be written is not held
            self.sync()
        self.touch()
        with self._lock:
            self._index.close()
            for descriptor in (self._descriptor, self._writing):
                if descriptor is not None:
                    os.close(descriptor)
            self._descriptor, self._writing = -1, None

    @contextmanager
    def _writing_alone(self) -> Iterator[None]:
        """Exclude all other threads and processes that write to the same file."""
        with self._lock, self._index.locked():
            yield

    def _is_kept(self, chunk: int, digest: bytes) -> bool:
        """Return whether a chunk is held; raise ``DamagedChunkError`` if it must have another
        digest.
        """
        state = self._index.state(chunk)
        if not state & ChunkState.DIGEST:
            return False
        if digest != self._index.digest(chunk):
            raise DamagedChunkError(self.label, chunk, "does not match its SHA-256")
        return bool(state & ChunkState.HELD)

    def _write(self, offset: int, data: memoryview) -> None:
        done = 0
        while done < len(data):
            try:
                if self._writing is None:
                    self._writing = self._open_to_write()
                done += os.pwrite(self._writing, data[done:], offset + done)
            except OSError as error:
                if error.errno not in _FULL or not self._room.relieve_disk():
                    raise

    def _open_to_write(self) -> int:
        writing = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        if os.path.samestat(os.fstat(writing), os.fstat(self._descriptor)):
            return writing
        os.close(writing)
        raise FileNotFoundError(errno.ENOENT, "the file was removed", str(self._path))

    def _drop(self, chunk: int) -> None:
        with self._writing_alone():
            self._forget(chunk)

    def _forget(self, chunk: int) -> None:
        """Mark a chunk as not held. The digest stays if it is verified."""
        is_known = self._index.is_verified
        self._index.set_state(chunk, ChunkState.DIGEST if is_known else ChunkState.NONE)

    def _check_size(self, chunk: int, data: Bytes) -> None:
        if not 0 <= chunk < self.content.num_chunks:
            raise ValueError(f"no chunk {chunk} in {self.content.num_chunks}")
        if len(data) != self.content.chunk_bytes(chunk):
            raise ValueError(f"{len(data)} bytes for chunk {chunk} of {self.content}")


DATA, INDEX = ".data", ".index"
"""Suffixes of the two files of a blob."""


def _not_kept(path: Path, error: OSError) -> StoreFullError:
    return StoreFullError(
        f"{path.parent}: {error.strerror or error}",
        hint="free some disk space, or do not store weights on this disk (--no-store)",
    )
