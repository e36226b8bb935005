"""Packed files of this user: ``$XDG_CACHE_HOME/potluck/packed``, bounded in size.

Any number of processes may use the folder at once. All locks are ``flock(2)``, which the kernel
releases when their holder ends for any reason: a process that maps a packed file holds a shared
lock on it; a process that creates one holds an exclusive lock on ``KEY.partial``, which is renamed
to ``KEY.packed`` when it is completely on the disk. Files without a lock may be removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import mmap
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.formats.packed import PackedLayout, PackedTensor
from potluck.host.cache_folder import cache_path
from potluck.types.quantities import format_bytes

_log = logging.getLogger(__name__)

MOST_BYTES = 20 * 2**30
"""The default limit for the whole folder, if ``packed_cache_bytes`` is not set. It is never more
than ``_SHARE_OF_DISK`` of the free space on the disk."""

_SHARE_OF_DISK = 4
_POLL_SECONDS = 0.1
_SYNC_BYTES = 64 * 2**20
"""The bytes written between two syncs, so that the sync at the end does not take minutes on a slow
SD card, which would look as if the process hung."""
_PACKED, _PARTIAL = ".packed", ".partial"

Write = Callable[[int, memoryview], None]
"""Writes bytes to an offset of the file."""


class NotPackedError(Exception):
    """Weights cannot be stored in a packed file; the message says why. They can still be loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedWeights:
    """A packed file, mapped read-only. It is in use while there are references to its bytes."""

    path: Path
    layout: PackedLayout
    data: memoryview

    def bytes_of(self, tensor: PackedTensor) -> memoryview:
        """Return a view of the file; nothing is read."""
        return self.data[tensor.offset : tensor.offset + tensor.num_bytes]


def default_packed_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/packed``, or the same under ``~/.cache``; None without a
    home directory.
    """
    return cache_path(environ, "packed")


class PackedCache:
    """Packed files in ``folder`` by key, with a total size of at most ``limit_bytes``.

    Nothing can be stored without a ``folder``. If ``limit_bytes`` is None, the limit is 20 GiB or a
    quarter of the free space on the disk, whichever is less. The least recently used files are
    removed first.
    """

    def __init__(self, folder: Path | None, limit_bytes: int | None = None) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes

    def weights(
        self, key: str, layout: PackedLayout, make: Callable[[Write], None]
    ) -> PackedWeights:
        """Return the packed file for ``key``, creating it first if there is no complete one.

        ``make`` writes all of its tensors; if another process is creating the same file, this one
        waits. Raise ``NotPackedError`` if the file cannot be stored (nothing is left of it then),
        and the errors of ``make``.
        """
        if self._folder is None:
            raise NotPackedError("neither HOME nor XDG_CACHE_HOME is set")
        final = self._folder / (key + _PACKED)
        partial = self._folder / (key + _PARTIAL)
        is_waiting = False
        try:
            while True:
                found = _map(final, layout)
                if found is not None:
                    return found
                self._folder.mkdir(parents=True, exist_ok=True)
                descriptor = _lock_for_making(partial)
                if descriptor is None:
                    if not is_waiting:
                        _log.info("another process is packing the same weights; waiting for it")
                    is_waiting = True
                    time.sleep(_POLL_SECONDS)
                    continue
                try:
                    self._make(descriptor, partial, final, layout, make)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise NotPackedError(f"{self._folder}: {error.strerror or error}") from error

    def _make(
        self,
        descriptor: int,
        partial: Path,
        final: Path,
        layout: PackedLayout,
        make: Callable[[Write], None],
    ) -> None:
        """Create ``final`` through ``partial``, which this process has locked, unless it exists."""
        unsynced = 0

        def write(offset: int, data: memoryview) -> None:
            nonlocal unsynced
            done = 0
            while done < len(data):
                done += os.pwrite(descriptor, data[done:], offset + done)
            unsynced += done
            if unsynced >= _SYNC_BYTES:
                unsynced = 0
                os.fdatasync(descriptor)

        try:
            if _map(final, layout) is not None:
                partial.unlink()
                return
            self._reserve(descriptor, partial, layout.num_bytes)
            if final.exists():
                _log.warning("%s is damaged; rebuilding it", final)
            write(0, memoryview(layout.header))
            make(write)
            os.fsync(descriptor)
            partial.rename(final)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise

    def _reserve(self, descriptor: int, partial: Path, num_bytes: int) -> None:
        """Allocate the file with its final size."""
        folder = os.open(partial.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # One process at a time, so that the next one counts the space reserved by this one.
            fcntl.flock(folder, fcntl.LOCK_EX)
            os.ftruncate(descriptor, 0)
            self._make_room(partial, num_bytes)
            os.ftruncate(descriptor, num_bytes)
        finally:
            os.close(folder)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)  # detect a full disk before reading
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise

    def _make_room(self, partial: Path, num_bytes: int) -> None:
        """Remove unfinished files, and then the least recently used ones."""
        kept = []
        for path, status in _files(partial.parent):
            if path == partial:
                continue
            if path.suffix != _PARTIAL or not _remove_unused(path):
                kept.append((path, status))
        used_bytes = sum(status.st_size for _, status in kept)
        limit = self._limit_bytes
        if limit is None:
            disk = os.statvfs(partial.parent)
            free = disk.f_bavail * disk.f_frsize + used_bytes
            limit = min(MOST_BYTES, free // _SHARE_OF_DISK)
        if num_bytes > limit:
            raise NotPackedError(
                f"{format_bytes(num_bytes)} exceed the limit of {format_bytes(limit)} "
                f"for {partial.parent} (packed_cache_bytes)"
            )
        for path, status in sorted(kept, key=lambda file: file[1].st_mtime_ns):  # set by each use
            if used_bytes + num_bytes <= limit:
                return
            if _remove_unused(path):
                used_bytes -= status.st_size
        if used_bytes + num_bytes > limit:
            raise NotPackedError(
                f"{format_bytes(used_bytes)} of the {format_bytes(limit)} allowed for "
                f"{partial.parent} (packed_cache_bytes) are in use"
            )


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for path in folder.iterdir():
        if path.suffix in (_PACKED, _PARTIAL):
            with contextlib.suppress(FileNotFoundError):
                yield path, path.stat()


def _map(path: Path, layout: PackedLayout) -> PackedWeights | None:
    """Map a packed file, if it exists and is valid."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        status = os.fstat(descriptor)
        was_removed = status.st_nlink == 0
        if was_removed or status.st_size != layout.num_bytes:
            return None
        if os.pread(descriptor, len(layout.header), 0) != layout.header:
            return None
        with contextlib.suppress(OSError):  # the folder may be read-only
            os.utime(descriptor)
        # The mapping has a duplicate of the descriptor, and therefore the lock.
        mapped = mmap.mmap(descriptor, layout.num_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    finally:
        os.close(descriptor)
    return PackedWeights(path=path, layout=layout, data=memoryview(mapped))


def _lock_for_making(partial: Path) -> int | None:
    """Return an exclusively locked descriptor of ``partial``; None if another process has it."""
    descriptor = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    if _is_locked_alone(descriptor, partial):
        return descriptor
    os.close(descriptor)
    return None


def _remove_unused(path: Path) -> bool:
    """Remove a file unless it is locked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if not _is_locked_alone(descriptor, path):
            return False
        path.unlink()
        return True
    finally:
        os.close(descriptor)


def _is_locked_alone(descriptor: int, path: Path) -> bool:
    """Lock an open file exclusively, without waiting, and return whether it succeeded and ``path``
    still leads to the file.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
