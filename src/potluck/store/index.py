"""The index of a blob: which chunks are held, their digests, and whether they are synced to disk.

It is one file: a header, one byte of state for each chunk, and one SHA-256 for each chunk. Any
number of processes read and write it at the same time with ``pread`` and ``pwrite``. A chunk is
marked held after its bytes were written, which suffices as long as this kernel runs; it is marked
synced after an ``fdatasync`` of both files. After another boot, chunks that are held but not synced
must be hashed again before they count.
"""

from __future__ import annotations

import enum
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from potluck.host.private_files import replace_file
from potluck.host.uname import boot_id
from potluck.types.content import DIGEST_BYTES, FileContent

_MAGIC = b"PLSTORE1"
_MAX_LABEL_BYTES = 200
_HEADER = struct.Struct(f"<8sQ32s32s16sB{_MAX_LABEL_BYTES}s")
"""Magic, bytes of the file, its SHA-256, checksum of verified digests, boot, label."""

_VERIFIED_AT = 8 + 8 + 32
_BOOT_AT = _VERIFIED_AT + 32
_LABEL_AT = _BOOT_AT + 16
_STATES_AT = 512
_ALIGNMENT = 4096
_NOT_VERIFIED = bytes(DIGEST_BYTES)


class ChunkState(enum.IntFlag):
    """The state of a chunk."""

    NONE = 0
    DIGEST = 1
    """The digest that it has, or must have, is known."""
    HELD = 2
    SYNCED = 4


class BlobIndex:
    """An index that is open for reading and writing. Raise ``ValueError`` if it is damaged.

    Thread-safe, except for ``locked``, which excludes other processes only.
    """

    def __init__(self, path: Path, content: FileContent) -> None:
        self.content = content
        self._digests_at = _digests_at(content)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._check(path)
        except BaseException:
            os.close(self._descriptor)
            raise

    @staticmethod
    def create(path: Path, content: FileContent, label: str) -> None:
        """Write an empty index, replacing any existing file."""
        short = label.encode("utf-8", "replace")[:_MAX_LABEL_BYTES]
        header = _HEADER.pack(
            _MAGIC,
            content.num_bytes,
            bytes.fromhex(content.sha256),
            _NOT_VERIFIED,
            boot_mark(),
            len(short),
            short,
        )
        data = bytearray(_digests_at(content) + content.digests_bytes)
        data[: len(header)] = header
        replace_file(path, bytes(data))

    @property
    def label(self) -> str:
        """Return the name of the file in messages."""
        data = os.pread(self._descriptor, 1 + _MAX_LABEL_BYTES, _LABEL_AT)
        return data[1 : 1 + data[0]].decode("utf-8", "replace")

    @property
    def is_from_this_boot(self) -> bool:
        """Return whether everything marked held was written or checked since this kernel booted."""
        return os.pread(self._descriptor, 16, _BOOT_AT) == boot_mark()

    def set_boot(self) -> None:
        """Record that everything marked held was checked."""
        self._write(boot_mark(), _BOOT_AT)

    @property
    def is_verified(self) -> bool:
        """Return whether the digests are those of a file verified by its SHA-256."""
        return os.pread(self._descriptor, DIGEST_BYTES, _VERIFIED_AT) != _NOT_VERIFIED

    def set_verified(self, digests: bytes) -> None:
        """Store the verified digests of all chunks."""
        states = self.states()
        self._write(digests, self._digests_at)
        self._write(bytes(state | ChunkState.DIGEST for state in states), _STATES_AT)
        self.sync()
        self._write(_checksum(digests), _VERIFIED_AT)

    def states(self) -> bytes:
        """Return the ``ChunkState`` of every chunk."""
        return os.pread(self._descriptor, self.content.num_chunks, _STATES_AT)

    def state(self, chunk: int) -> ChunkState:
        """Return that of one chunk."""
        return ChunkState(os.pread(self._descriptor, 1, _STATES_AT + chunk)[0])

    def set_state(self, chunk: int, state: ChunkState) -> None:
        """Set the state of one chunk."""
        self._write(bytes([state]), _STATES_AT + chunk)

    def digest(self, chunk: int) -> bytes:
        """Return the digest of a chunk, whose state says whether it is known."""
        return os.pread(self._descriptor, DIGEST_BYTES, self._digests_at + chunk * DIGEST_BYTES)

    def set_digest(self, chunk: int, digest: bytes) -> None:
        """Set the digest of a chunk. The state does not change."""
        self._write(digest, self._digests_at + chunk * DIGEST_BYTES)

    def digests(self) -> bytes:
        """Return the digests of all chunks, one after the other."""
        return os.pread(self._descriptor, self.content.digests_bytes, self._digests_at)

    def is_at(self, path: Path) -> bool:
        """Return whether ``path`` still leads to this file."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), path.stat())
        except FileNotFoundError:
            return False

    def clear(self) -> None:
        """Mark every chunk as neither held nor known."""
        self._write(_NOT_VERIFIED, _VERIFIED_AT)
        self._write(bytes(self.content.num_chunks), _STATES_AT)

    def sync(self) -> None:
        """Return when the written data is on disk."""
        os.fdatasync(self._descriptor)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude every other process that writes to the same blob."""
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _check(self, path: Path) -> None:
        content = self.content
        header = os.pread(self._descriptor, _HEADER.size, 0)
        expected = self._digests_at + content.digests_bytes
        if len(header) < _HEADER.size or os.fstat(self._descriptor).st_size != expected:
            raise ValueError(f"{path}: the file size is wrong")
        magic, num_bytes, sha256, verified, *_ = _HEADER.unpack(header)
        if (magic, num_bytes, sha256.hex()) != (_MAGIC, content.num_bytes, content.sha256):
            raise ValueError(f"{path}: the header is damaged")
        if verified != _NOT_VERIFIED and verified != _checksum(self.digests()):
            raise ValueError(f"{path}: the digests are damaged")

    def _write(self, data: bytes, offset: int) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], offset + done)


def boot_mark() -> bytes:
    """Return 16 bytes that identify the running kernel's boot; random if it has no id."""
    try:
        return bytes.fromhex(boot_id().replace("-", ""))[:16]
    except (OSError, ValueError):
        return os.urandom(16)


def _digests_at(content: FileContent) -> int:
    return -(-(_STATES_AT + content.num_chunks) // _ALIGNMENT) * _ALIGNMENT


def _checksum(digests: bytes) -> bytes:
    return hashlib.sha256(_MAGIC + digests).digest()
