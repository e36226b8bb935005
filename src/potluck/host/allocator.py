"""The C library's allocator, told to give back what is free.

glibc keeps freed memory for its process, in as many arenas as eight per core, and raises the size
from which blocks are mapped by themselves to that of the largest one freed. An agent that handles a
few large requests would so keep their memory for ever. Other C libraries have neither the habit nor
the functions, and then nothing is done.
"""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""From glibc's malloc.h."""

_MAX_ARENAS = 2
_MAPPED_BYTES = 256 * 1024


def limit_arenas() -> None:
    """Use few arenas, and map large blocks by themselves. For the start of a process."""
    mallopt = _function("mallopt")
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, _MAX_ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def return_free_memory() -> None:
    """Give all whole pages that are free back to the system. Takes milliseconds."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(ctypes.c_size_t(0))


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:  # a static build of Python
        return None
