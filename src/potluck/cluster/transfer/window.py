"""A few chunks of a file in memory, at their offsets, for a reader if they are on no disk.

The file is a ``memfd_create(2)`` as long as the real one, and sparse. What was read is punched out
of it, which frees its pages while the reader still has the descriptor.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable

from potluck.types.content import CHUNK_BYTES, FileContent

_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
"""linux/falloc.h"""


class Window:
    """The chunks ``present`` of one file. Not thread-safe."""

    def __init__(self, content: FileContent) -> None:
        self.content = content
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
