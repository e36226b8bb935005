"""The store of weights: ``$XDG_CACHE_HOME/potluck/weights``, bounded in size.

Each file is stored as two: ``SHA256-SIZE.data``, as long as the file and sparse, and its index (see
``store.index``). Any number of processes may use the folder at the same time. All locks are
``flock(2)``, which the kernel releases when their holder ends in any way: a process that uses a
blob has a shared lock on its data; one that creates or removes blobs has an exclusive one on
``lock``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from potluck.errors import ModelFileError, StoreFullError
from potluck.host.cache_folder import cache_path
from potluck.host.private_files import sync_folder
from potluck.store.blob import DATA, INDEX, Blob
from potluck.store.index import BlobIndex, ChunkState
from potluck.store.known_files import KnownFiles
from potluck.store.local_file import LocalFile
from potluck.types.content import MAX_FILE_BYTES, SHA256, FileContent
from potluck.types.quantities import format_bytes

_log = logging.getLogger(__name__)

_LOCK = "lock"
_KNOWN = "known"
_NAME = re.compile(r"([0-9a-f]{64})-([0-9]{1,15})\.(?:data|index)")

_SHARE_OF_DISK = 2
"""The store may use one part in this many of the disk space that would be free without it."""

_GRANT_BYTES = 64 * 2**20
"""Bytes counted at once, so that the folder is not read for each chunk. The limit is exact for one
process; each further process that writes at the same time may exceed it by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file in the store. ``used_at`` is in seconds since 1970; ``label`` may be empty."""

    content: FileContent
    label: str
    held_bytes: int
    is_verified: bool
    is_in_use: bool
    used_at: float


def default_store_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/weights``, or below ``~/.cache``; None without a home
    directory.
    """
    return cache_path(environ, "weights")


def default_limit_bytes(folder: Path) -> int:
    """Return half of the disk's free space, counting the store's own use as free.

    Return 0 if ``folder`` cannot be used.
    """
    existing = folder
    try:
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        disk = os.statvfs(existing)
        return (disk.f_bavail * disk.f_frsize + _held_bytes(folder)) // _SHARE_OF_DISK
    except OSError:
        return 0


class ContentStore:
    """The model files on this disk. Thread-safe; several processes may share ``folder``.

    Stored files take at most ``limit_bytes``; with 0 nothing is stored. If there is no room, the
    least recently used file that is not in use is removed. ``hub_folder`` is huggingface_hub's
    cache, whose files are found as well.
    """

    def __init__(self, folder: Path, limit_bytes: int, *, hub_folder: Path | None = None) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.known = KnownFiles(folder / _KNOWN)
        self._hub_folder = hub_folder
        self._lock = threading.Lock()
        self._granted_bytes = 0

    def blob(self, content: FileContent, *, label: str = "") -> Blob:
        """Return a file of the store, created if it does not exist; it stays until it is closed.

        ``label`` is the name of a new file in messages and ``potluck cache``. Raise
        ``StoreFullError`` if nothing can be stored here, and ``ModelFileError`` for a content that
        no file can have.
        """
        _check(content)
        if self.limit_bytes <= 0:
            raise StoreFullError(
                f"{self.folder} stores nothing (weights_store is 0)",
                hint="set weights_store to the number of bytes to store",
            )
        try:
            with self._locked():
                blob = self._open(content)
                if blob is None:
                    self._make(content, label)
                    blob = self._open(content)
            if blob is not None:
                return self._recovered(blob)
        except OSError as error:
            raise self._unusable(error) from error
        raise StoreFullError(
            f"{self.folder}: a file disappeared while it was being created", hint="try again"
        )

    def find(self, sha256: str, num_bytes: int | None = None) -> Blob | LocalFile | None:
        """Return what this disk has of a file, preferably all of it; None for nothing.

        Only files of ``num_bytes`` are considered if that is known. A file in huggingface_hub's
        cache is identified by its name, and was not hashed.
        """
        if not SHA256.fullmatch(sha256):
            return None
        blob = self._found(sha256, num_bytes)
        if blob is not None and blob.is_whole:
            return blob
        local = self.known.open(sha256) or self._in_hub_cache(sha256)
        if local is not None and num_bytes in (None, local.content.num_bytes):
            if blob is not None:
                blob.close()
            return local
        if local is not None:
            local.close()
        return blob

    def listing(self) -> tuple[StoredFile, ...]:
        """Return the files of the store, the most recently used first."""
        files = [stored for path in _indexes(self.folder) if (stored := _stored(path)) is not None]
        return tuple(sorted(files, key=lambda file: (-file.used_at, file.content)))

    def prune(self, to_bytes: int | None = None) -> int:
        """Remove the least recently used files until at most ``to_bytes`` (or the limit) are
        stored.

        Files in use stay. Return how many bytes were removed.
        """
        limit = self.limit_bytes if to_bytes is None else to_bytes
        if not self.folder.is_dir():
            return 0
        try:
            with self._locked():
                self._remove_leftovers()
                return self._prune(_held_bytes(self.folder) - limit)
        except OSError as error:
            raise self._unusable(error) from error

    def take(self, num_bytes: int) -> None:
        """Count bytes that are about to be stored, and make room for them.

        Raise ``StoreFullError`` if files in use leave no room.
        """
        with self._lock:
            if self._granted_bytes < num_bytes:
                try:
                    with self._locked():
                        self._granted_bytes = self._room(num_bytes)
                except OSError as error:
                    raise self._unusable(error) from error
            if self._granted_bytes < num_bytes:
                raise StoreFullError(
                    f"{self.folder} is full: its limit is {format_bytes(self.limit_bytes)}, "
                    "and everything in it is in use",
                    hint="raise weights_store, or do not store weights on this disk (--no-store)",
                )
            self._granted_bytes -= num_bytes

    def relieve_disk(self) -> bool:
        """Remove the least recently used file, as the disk is full; return False if all are in
        use.
        """
        try:
            with self._locked():
                return self._prune(1) > 0
        except OSError:
            return False

    # Called with the folder locked.

    def _open(self, content: FileContent) -> Blob | None:
        """Return a blob; None if there is none, or a damaged one."""
        index_path, data_path = self._paths(content)
        try:
            index = BlobIndex(index_path, content)
        except FileNotFoundError:
            return None
        except ValueError as error:
            _log.warning("%s; the data is downloaded again", error)
            return None
        try:
            blob = Blob(data_path, index, self)
            if not index.is_at(index_path):  # both were just removed
                blob.close()
                return None
            return blob
        except (FileNotFoundError, ValueError) as error:
            index.close()
            _log.warning("%s; it is downloaded again", error)
            return None
        except BaseException:
            index.close()
            raise

    def _make(self, content: FileContent, label: str) -> None:
        """Create an empty blob, replacing a damaged one."""
        index, data = self._paths(content)
        if index.exists():
            # First, and synced: an old index must not describe a new file.
            index.unlink()
            sync_folder(self.folder)
        data.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(data, flags, 0o600)
        try:
            os.ftruncate(descriptor, content.num_bytes)
        finally:
            os.close(descriptor)
        try:
            BlobIndex.create(index, content, label)
        except BaseException:
            data.unlink(missing_ok=True)
            raise

    def _room(self, needed_bytes: int) -> int:
        """Return how many bytes may be stored, after removing files if necessary."""
        free_bytes = self.limit_bytes - _held_bytes(self.folder)
        if free_bytes < needed_bytes:
            free_bytes += self._prune(needed_bytes - free_bytes)
        return min(free_bytes, max(needed_bytes, _GRANT_BYTES))

    def _prune(self, num_bytes: int) -> int:
        """Remove unused files until this many bytes are removed, the oldest first."""
        removed = 0
        for stored in reversed(self.listing()):
            if removed >= num_bytes:
                break
            if not stored.is_in_use and self._remove_unused(stored.content):
                _log.info("removed %s from the store", stored.label or stored.content.sha256)
                removed += stored.held_bytes
        return removed

    def _remove_unused(self, content: FileContent) -> bool:
        index, data = self._paths(content)
        with _only_user(data) as is_unused:
            if is_unused:
                index.unlink(missing_ok=True)
                data.unlink(missing_ok=True)
            return is_unused

    def _remove_leftovers(self) -> None:
        """Remove data without an index, or with a damaged one."""
        for path in self.folder.iterdir():
            is_orphan = path.suffix == DATA and not path.with_suffix(INDEX).exists()
            if is_orphan or (path.name.startswith(".") and path.name.endswith(".draft")):
                path.unlink(missing_ok=True)
            content = _content_of(path)
            if path.suffix == INDEX and content is not None and _stored(path) is None:
                self._remove_unused(content)

    def _paths(self, content: FileContent) -> tuple[Path, Path]:
        """Return the paths of a blob's index and data."""
        name = f"{content.sha256}-{content.num_bytes}"
        return self.folder / (name + INDEX), self.folder / (name + DATA)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Exclude all others that create or remove blobs."""
        try:
            descriptor = self._open_lock()
        except FileNotFoundError:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = self._open_lock()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int:
        return os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _found(self, sha256: str, num_bytes: int | None) -> Blob | None:
        """Return what the store has of a file, without creating anything."""
        for path in self.folder.glob(f"{sha256}-{'*' if num_bytes is None else num_bytes}{INDEX}"):
            content = _content_of(path)
            if content is None:
                continue
            try:
                blob = self._open(content)
                if blob is not None:
                    blob = self._recovered(blob)
                    if blob.is_whole or blob.held():
                        return blob
                    blob.close()
            except OSError as error:
                _log.warning("%s cannot be used: %s", path, error)
        return None

    def _in_hub_cache(self, sha256: str) -> LocalFile | None:
        """Return a file in large-file storage: such a blob is named by its SHA-256."""
        if self._hub_folder is None:
            return None
        for path in self._hub_folder.glob(f"models--*/blobs/{sha256}"):
            try:
                return LocalFile(path, FileContent(sha256, path.stat().st_size))
            except (OSError, ModelFileError) as error:
                _log.debug("%s", error)
        return None

    def _recovered(self, blob: Blob) -> Blob:
        """Return the blob after dropping what was lost in a power failure."""
        try:
            lost = blob.recover()
        except BaseException:
            blob.close()
            raise
        if lost:
            _log.warning(
                "%s: chunks %s had not reached the disk when this machine went down",
                blob.label or blob.content.sha256,
                ", ".join(f"{first} to {end - 1}" for first, end in lost),
            )
        return blob

    def _unusable(self, error: OSError) -> StoreFullError:
        return StoreFullError(
            f"{error.filename or self.folder}: {error.strerror or error}",
            hint="make the directory writable, or do not store weights on this disk (--no-store)",
        )


def _check(content: FileContent) -> None:
    if not SHA256.fullmatch(content.sha256) or not 0 <= content.num_bytes <= MAX_FILE_BYTES:
        raise ModelFileError(repr(content.sha256)[:80], f"no file of {content.num_bytes} bytes")


def _content_of(path: Path) -> FileContent | None:
    """Return the content that an index or data file is named after; None for other files."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else FileContent(match[1], int(match[2]))


def _indexes(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.suffix == INDEX]
    except FileNotFoundError:
        return []


def _held_bytes(folder: Path) -> int:
    files = (_stored(path, looks_for_users=False) for path in _indexes(folder))
    return sum(file.held_bytes for file in files if file is not None)


def _stored(path: Path, *, looks_for_users: bool = True) -> StoredFile | None:
    """Return the content of an index; None if it is damaged or was just removed."""
    content = _content_of(path)
    if content is None:
        return None
    data = path.with_suffix(DATA)
    try:
        index = BlobIndex(path, content)
    except (OSError, ValueError):
        return None
    try:
        with contextlib.ExitStack() as stack:
            is_unused = looks_for_users and stack.enter_context(_only_user(data))
        return StoredFile(
            content=content,
            label=index.label,
            held_bytes=sum(
                content.chunk_bytes(chunk)
                for chunk, state in enumerate(index.states())
                if state & ChunkState.HELD
            ),
            is_verified=index.is_verified,
            is_in_use=not is_unused,
            used_at=data.stat().st_mtime,
        )
    except OSError:
        return None
    finally:
        index.close()


@contextmanager
def _only_user(data: Path) -> Iterator[bool]:
    """Yield whether no other process uses a blob; none can begin to while the block runs."""
    try:
        descriptor = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
