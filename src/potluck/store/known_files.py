"""Files on this disk whose content is known, so that each is hashed once.

The result for each is in one small file: the path, its file-system metadata (``FileStamp``), and
the digest of every chunk. A file that has changed since is hashed again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec

from potluck.errors import ModelFileError, ModelNotFoundError
from potluck.formats.files import FileStamp, ReadOnlyFile, read_bytes, stamp_of
from potluck.host.private_files import replace_file
from potluck.store.local_file import LocalFile
from potluck.types.content import CHUNK_BYTES, DIGEST_BYTES, FileContent

_log = logging.getLogger(__name__)

OnProgress = Callable[[int, int], None]
"""Called with the bytes hashed so far, and the size of the file."""

_SUFFIX = ".known"
_LOCK = ".lock"
_NAME = re.compile(r"([0-9a-f]{64})-([0-9a-f]{32})\.known")
_MAX_RECORD_BYTES = 2**30
_MAX_RECORDS = 10_000


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """``digests`` are of all chunks, one after the other."""

    path: bytes
    stamp: tuple[int, int, int, int]
    num_bytes: int
    digests: bytes


class KnownFiles:
    """The known contents of files on this disk, stored in ``folder``.

    Thread-safe; several processes may share the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def identify(
        self, path: Path, on_progress: OnProgress | None = None
    ) -> tuple[FileContent, bytes]:
        """Return the content of a file and the digests of its chunks, reading it at most once.

        Raise ``ModelNotFoundError`` if there is no such file, and ``ModelFileError`` if it cannot
        be read or changes meanwhile.
        """
        real = _resolved(path)
        known = self._known(real)
        if known is not None:
            return known
        with self._only_one(real):
            known = self._known(real)  # hashed by another process while this one waited
            if known is not None:
                return known
            stamp, content, digests = _hashed(real, on_progress)
            self._keep(real, stamp, content, digests)
        return content, digests

    def open(self, sha256: str) -> LocalFile | None:
        """Return a file with this content, if one is known that has not changed since it was
        hashed.
        """
        for name in self._folder.glob(f"{sha256}-*{_SUFFIX}"):
            record = _read(name)
            if record is not None:
                path = Path(os.fsdecode(record.path))
                content = FileContent(sha256, record.num_bytes)
                try:
                    return LocalFile(path, content, digests=record.digests, stamp=_stamp(record))
                except ModelFileError as error:
                    _log.debug("%s", error)
            # A record of a file that is gone, or another one, stays: the folder may be shared with
            # machines or containers that have the file at this path.
        return None

    def _known(self, path: Path) -> tuple[FileContent, bytes] | None:
        try:
            stamp = stamp_of(path.stat())
        except OSError:
            return None
        for name in self._folder.glob(f"*-{_key(path)}{_SUFFIX}"):
            match = _NAME.fullmatch(name.name)
            record = _read(name)
            is_same = record is not None and record.path == os.fsencode(path)
            if match and record is not None and is_same and _stamp(record) == stamp:
                return FileContent(match[1], record.num_bytes), record.digests
            with contextlib.suppress(OSError):
                name.unlink()
        return None

    def _keep(self, path: Path, stamp: FileStamp, content: FileContent, digests: bytes) -> None:
        record = _Record(
            os.fsencode(path),
            (stamp.size, stamp.modified_nanoseconds, stamp.changed_nanoseconds, stamp.inode),
            content.num_bytes,
            digests,
        )
        data = msgspec.msgpack.encode(record)
        name = self._folder / f"{content.sha256}-{_key(path)}{_SUFFIX}"
        try:
            replace_file(name, hashlib.sha256(data).digest() + data)
            _forget_oldest(self._folder)
        except OSError as error:
            _log.warning(
                "%s: the verification result of %s is not stored: %s", self._folder, path, error
            )

    @contextmanager
    def _only_one(self, path: Path) -> Iterator[None]:
        """Let only one process, and one thread of it, hash a file."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._folder / f"{_key(path)}{_LOCK}"
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # a read-only or full disk: the file is hashed, but the result is not stored
        except OSError:
            yield
            return
        try:
            with contextlib.suppress(OSError):  # not every network file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
            with contextlib.suppress(OSError):
                lock.unlink()
        finally:
            os.close(descriptor)


def _hashed(path: Path, on_progress: OnProgress | None) -> tuple[FileStamp, FileContent, bytes]:
    """Read a file once, and hash it as a whole in one thread and by chunks in another."""
    file = ReadOnlyFile(path)
    whole = hashlib.sha256()
    digests = bytearray()
    try:
        with ThreadPoolExecutor(1, "hash") as other:
            pending = None
            for offset in range(0, file.size, CHUNK_BYTES):
                data = read_bytes(file, offset, min(CHUNK_BYTES, file.size - offset))
                if pending is not None:
                    pending.result()
                pending = other.submit(whole.update, data)
                digests += hashlib.sha256(data).digest()
                if on_progress is not None:
                    on_progress(offset + len(data), file.size)
            if pending is not None:
                pending.result()
        file.check_unchanged()
        return file.stamp, FileContent(whole.hexdigest(), file.size), bytes(digests)
    finally:
        file.close()


def _forget_oldest(folder: Path) -> None:
    names = list(folder.glob(f"*{_SUFFIX}"))
    if len(names) > _MAX_RECORDS:
        names.sort(key=lambda name: name.stat().st_mtime_ns)
        for name in names[: len(names) - _MAX_RECORDS]:
            name.unlink(missing_ok=True)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelNotFoundError(f"{path}: {error}") from error


def _read(name: Path) -> _Record | None:
    """Return a record; None if it is damaged."""
    try:
        with name.open("rb") as file:
            data = file.read(_MAX_RECORD_BYTES)
        checksum, data = data[:DIGEST_BYTES], data[DIGEST_BYTES:]
        if hashlib.sha256(data).digest() != checksum:
            return None
        return msgspec.msgpack.decode(data, type=_Record)
    except (OSError, msgspec.MsgspecError):
        return None


def _stamp(record: _Record) -> FileStamp:
    size, modified, changed, inode = record.stamp
    return FileStamp(
        size=size, modified_nanoseconds=modified, changed_nanoseconds=changed, inode=inode
    )


def _key(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
