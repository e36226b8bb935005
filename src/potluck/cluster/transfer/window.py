"""A few chunks of a file in memory, at their offsets, for a reader if they are on no disk.

The file is a ``memfd_create(2)`` as long as the real one, and sparse. What was read is punched out
of it, which frees its pages while the reader still has the descriptor.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
from collections.abc import Callable

from potluck.cluster.transfer.shared_file import SharedFile
from potluck.types.content import CHUNK_BYTES, FileContent

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
"""linux/falloc.h"""

MOST_RELAYED_CHUNKS = 16
"""In transit or present, in addition to those of readers."""

_places = itertools.count(2**32)  # distinct from those of files


class Window:
    """The chunks ``present`` of one file. Not thread-safe."""

    def __init__(self, content: FileContent) -> None:
        self.content = content
        self.place = next(_places)
        self.present: set[int] = set()
        self.lingering: set[int] = set()
        """Those of ``present`` that their reader has already read, kept for peers."""
        self._descriptor = os.memfd_create("potluck-window", os.MFD_CLOEXEC)
        os.ftruncate(self._descriptor, content.num_bytes)

    def descriptor(self) -> int:
        """Return the descriptor, which is closed with the window unless it was passed on."""
        return self._descriptor

    def put(self, chunk: int, data: memoryview | bytes) -> None:
        """Add a chunk. Raise ``OSError`` if there is no memory for it."""
        view = memoryview(data)
        done = 0
        while done < len(view):
            done += os.pwrite(self._descriptor, view[done:], chunk * CHUNK_BYTES + done)
        self.present.add(chunk)
        self.lingering.discard(chunk)

    def read(self, chunk: int) -> bytes:
        """Return a chunk that is present."""
        return os.pread(self._descriptor, self.content.chunk_bytes(chunk), chunk * CHUNK_BYTES)

    def punch(self, chunk: int) -> None:
        """Free a chunk's memory."""
        if chunk in self.present:
            self.present.discard(chunk)
            self.lingering.discard(chunk)
            _punch_hole(self._descriptor, chunk * CHUNK_BYTES, CHUNK_BYTES)

    def close(self) -> None:
        """Free all memory, including that which a reader could still read. Idempotent."""
        if self._descriptor >= 0:
            for chunk in tuple(self.present):
                self.punch(chunk)
            os.close(self._descriptor)
            self._descriptor = -1


@functools.cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """Return ``fallocate(2)``, which the standard library lacks."""
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return function


def _punch_hole(descriptor: int, offset: int, num_bytes: int) -> None:
    mode = _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE
    if _fallocate()(descriptor, mode, offset, num_bytes) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Relay:
    """The chunks held for peers. For use with the board's lock held.

    A node without a store fetches chunks only for peers: they are in memory until they are sent. A
    peer may ask for a chunk that a reader of this node has read and released, or that no reader of
    it wants. A node that stores chunks would still have it; here it is fetched again.
    """

    def __init__(self) -> None:
        self._admitted: dict[SharedFile, set[int]] = {}
        self._windows: dict[SharedFile, Window] = {}

    def admit(self, file: SharedFile, chunk: int) -> bool:
        """Reserve a place for a chunk until ``drop``; return whether there is one."""
        admitted = self._admitted.setdefault(file, set())
        if chunk in admitted:
            return True
        if sum(map(len, self._admitted.values())) >= MOST_RELAYED_CHUNKS:
            return False
        admitted.add(chunk)
        return True

    def put(self, file: SharedFile, chunk: int, data: memoryview | bytes) -> None:
        """Accept a chunk that has arrived, if it has a place."""
        if chunk in self._admitted.get(file, ()):
            window = self._windows.get(file)
            if window is None:
                window = self._windows[file] = Window(file.content)
            window.put(chunk, data)

    def read(self, file: SharedFile, chunk: int) -> bytes | None:
        """Return a chunk that is present; None for any other."""
        window = self._windows.get(file)
        return window.read(chunk) if window is not None and chunk in window.present else None

    def drop(self, file: SharedFile, chunk: int) -> bool:
        """Free a chunk's place; return whether it had one."""
        admitted = self._admitted.get(file)
        if admitted is None or chunk not in admitted:
            return False
        admitted.discard(chunk)
        if (window := self._windows.get(file)) is not None:
            window.punch(chunk)
        if not admitted:
            self.close(file)
        return True

    def close(self, file: SharedFile) -> None:
        """Release everything that is in memory of a file. Idempotent."""
        self._admitted.pop(file, None)
        if (window := self._windows.pop(file, None)) is not None:
            window.close()
