"""Cache blocks of one stage on disk: ``$XDG_CACHE_HOME/potluck/kv/KEY``, bounded in size.

A block is a file named after its hash and that of the preceding block, and is renamed to that name
when it is complete. It is not synced: after a power failure, an incomplete file does not match the
checksum in its header, and is removed when it is read. Nothing here interprets the bytes; KEY must
identify everything that they depend on in addition to the hash.

Only one process at a time can lock a folder (``flock(2)``). Folders that no process has locked were
left by other stages. They are kept as long as there is room for them, and removed as a whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import heapq
import logging
import os
import re
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.host.cache_folder import cache_path

_log = logging.getLogger(__name__)

_MAGIC = b"PLKVBLK1"
_CHECKSUM_BYTES = 16
HEADER_BYTES = len(_MAGIC) + 8 + _CHECKSUM_BYTES
_LENGTH = struct.Struct("<Q")

_NAME = re.compile(r"((?:[0-9a-f]{2})+)-((?:[0-9a-f]{2})+)\.block")
_PARTIAL = ".partial"
_LOCK = "lock"

_SPARE_LEAVES = 64
"""Maximum number of stale items in the heap of leaves in excess of two per block: every use adds
one."""

_PAUSE_SECONDS = 60.0
"""Time without further writes after a failed one, because the disk is full or broken."""


def default_block_folder(environ: Mapping[str, str]) -> Path | None:
    """Return ``$XDG_CACHE_HOME/potluck/kv``, or below ``~/.cache``; None without a home
    directory.
    """
    return cache_path(environ, "kv")


@dataclass(slots=True)
class _Entry:
    """A block on the disk, last used at ``used`` nanoseconds since 1970."""

    parent: bytes
    used: int


@dataclass(frozen=True, slots=True)
class _Leftover:
    """The folder of another stage that no process uses."""

    path: Path
    num_bytes: int


class BlockStore:
    """The blocks of one stage. Thread-safe.

    Together with the folders that other stages left in ``folder``, they take at most
    ``limit_bytes``. If there is no room, folders of other stages are removed first, and then the
    least recently used own block that no other block continues: the others can be used without it.
    Raises ``OSError`` if the folder cannot be used, and ``BlockingIOError`` if another process has
    locked it. The folder ``beside`` belongs to the same stage, and does not count as left over.
    """

    def __init__(
        self,
        folder: Path,
        key: str,
        *,
        block_bytes: int,
        limit_bytes: int,
        beside: str | None = None,
    ) -> None:
        self._folder = folder / key
        self.block_bytes = block_bytes
        self._file_bytes = HEADER_BYTES + block_bytes
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._entries: dict[bytes, _Entry] = {}
        # children that are present, including those of missing blocks
        self._num_children: Counter[bytes] = Counter()
        # a heap; may name blocks that are no longer leaves
        self._leaves: list[tuple[int, bytes]] = []
        self._paused_until = 0.0
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor = _lock_folder(self._folder)
        try:
            self._leftovers = _leftovers(folder, {key, beside})
            self._scan()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def num_blocks(self) -> int:
        """Return the number of blocks on the disk."""
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Return their size."""
        return len(self._entries) * self._file_bytes

    def __contains__(self, block_hash: bytes) -> bool:
        """Return whether the block is on the disk, as far as known without reading it."""
        return block_hash in self._entries

    def read(self, block_hash: bytes, out: memoryview) -> bool:
        """Fill ``out`` with the block, and mark it as used; return False if it is not stored.

        A damaged file is removed. ``out`` may then hold anything.
        """
        with self._lock:
            entry = self._entries.get(block_hash)
        if entry is None:
            return False
        path = self._path(block_hash, entry.parent)
        now = time.time_ns()
        try:
            with path.open("rb", buffering=0) as file:
                header = file.read(HEADER_BYTES)
                is_whole = file.readinto(out) == self.block_bytes
                with contextlib.suppress(OSError):
                    os.utime(file.fileno(), ns=(now, now))
        except OSError as error:
            _log.warning("%s cannot be read: %s", path, error)
            is_whole, header = False, b""
        if not is_whole or header != _header(block_hash, entry.parent, out):
            with self._lock:
                if block_hash in self._entries:
                    self._remove(block_hash)
            with contextlib.suppress(OSError):
                path.unlink()
            return False
        with self._lock:
            if block_hash in self._entries:
                self._touch(block_hash, entry, now)
        return True

    def write(self, block_hash: bytes, parent: bytes, data: memoryview) -> bool:
        """Store a block, and return whether it is on the disk now.

        Errors are logged, and nothing is written for a minute after one.
        """
        if len(data) != self.block_bytes:
            raise ValueError(f"a block of {len(data)} bytes instead of {self.block_bytes}")
        if block_hash in self._entries:
            return True
        if time.monotonic() < self._paused_until or not self._make_room(self._file_bytes):
            return False
        path = self._path(block_hash, parent)
        partial = path.with_suffix(_PARTIAL)
        try:
            with partial.open("wb", buffering=0) as file:
                for part in (_header(block_hash, parent, data), data):
                    _write_all(file.fileno(), memoryview(part))
            partial.rename(path)
        except OSError as error:
            _log.warning("cache blocks are temporarily not stored: %s", error)
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
            with contextlib.suppress(OSError):
                partial.unlink()
            return False
        with self._lock:
            self._add(block_hash, parent, time.time_ns())
        return True

    def close(self) -> None:
        """Release the folder. Idempotent."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _path(self, block_hash: bytes, parent: bytes) -> Path:
        return self._folder / f"{block_hash.hex()}-{parent.hex()}.block"

    def _scan(self) -> None:
        """Find existing blocks, and remove those that are incomplete or of another size."""
        found: list[tuple[int, bytes, bytes]] = []
        with os.scandir(self._folder) as entries:
            for each in entries:
                match = _NAME.fullmatch(each.name)
                status = each.stat(follow_symlinks=False)
                if match is not None and status.st_size == self._file_bytes:
                    block_hash, parent = (bytes.fromhex(part) for part in match.groups())
                    found.append((status.st_mtime_ns, block_hash, parent))
                elif match is not None or each.name.endswith(_PARTIAL):
                    Path(each.path).unlink()
        for used, block_hash, parent in sorted(found):
            if block_hash not in self._entries:
                self._add(block_hash, parent, used)
        self._make_room(0)

    def _make_room(self, num_bytes: int) -> bool:
        """Make room for ``num_bytes``; return False if the limit is too low."""
        while True:
            leftover_bytes = sum(each.num_bytes for each in self._leftovers)
            if self.num_bytes + leftover_bytes + num_bytes <= self._limit_bytes:
                return True
            if self._leftovers:
                _remove_folder(self._leftovers.pop(0).path)
                continue
            with self._lock:
                victim = self._least_used_leaf()
                if victim is None:
                    return False
                path = self._path(victim, self._entries[victim].parent)
                self._remove(victim)
            with contextlib.suppress(OSError):
                path.unlink()

    # Methods that track the blocks: called with the lock held.

    def _add(self, block_hash: bytes, parent: bytes, used: int) -> None:
        entry = self._entries[block_hash] = _Entry(parent, used)
        self._num_children[parent] += 1
        self._touch(block_hash, entry, used)

    def _remove(self, block_hash: bytes) -> None:
        parent = self._entries.pop(block_hash).parent
        self._num_children[parent] -= 1
        if not self._num_children[parent]:
            del self._num_children[parent]
            if parent in self._entries:
                heapq.heappush(self._leaves, (self._entries[parent].used, parent))

    def _touch(self, block_hash: bytes, entry: _Entry, used: int) -> None:
        entry.used = used
        if block_hash not in self._num_children:
            heapq.heappush(self._leaves, (used, block_hash))
        if len(self._leaves) > 2 * len(self._entries) + _SPARE_LEAVES:
            self._leaves = [
                (each.used, leaf)
                for leaf, each in self._entries.items()
                if leaf not in self._num_children
            ]
            heapq.heapify(self._leaves)

    def _least_used_leaf(self) -> bytes | None:
        while self._leaves:
            used, block_hash = heapq.heappop(self._leaves)
            entry = self._entries.get(block_hash)
            is_leaf = block_hash not in self._num_children
            if entry is not None and entry.used == used and is_leaf:
                return block_hash
        return None


def _header(block_hash: bytes, parent: bytes, data: memoryview) -> bytes:
    """Return the header of a file. Its checksum covers the names too, as the file may be
    renamed.
    """
    digest = hashlib.blake2b(_MAGIC + block_hash + parent, digest_size=_CHECKSUM_BYTES)
    digest.update(data)
    return _MAGIC + _LENGTH.pack(len(data)) + digest.digest()


def _write_all(descriptor: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])


def _lock_folder(folder: Path) -> int:
    """Return a descriptor that holds the lock of a folder; raise ``BlockingIOError`` if it is
    taken.

    The holder of the lock may remove the folder; it is then created again.
    """
    while True:
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), (folder / _LOCK).stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _leftovers(folder: Path, own: Collection[str | None]) -> list[_Leftover]:
    """Return the folders of other stages, least recently used first."""
    found = []
    for path in folder.iterdir():
        if path.name in own or not path.is_dir() or path.is_symlink():
            continue
        with contextlib.suppress(OSError):
            if not _is_locked(path):
                sizes = [each.stat().st_size for each in path.iterdir()]
                found.append((path.stat().st_mtime_ns, _Leftover(path, sum(sizes))))
    return [leftover for _, leftover in sorted(found, key=lambda each: each[0])]


def _is_locked(folder: Path) -> bool:
    try:
        os.close(_lock_folder(folder))
    except BlockingIOError:
        return True
    return False


def _remove_folder(folder: Path) -> None:
    """Remove the folder of another stage, unless it is in use again."""
    try:
        descriptor = _lock_folder(folder)
    except OSError:
        return
    try:
        _log.info("removing the cache blocks in %s", folder)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
