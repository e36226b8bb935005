"""A bounded queue from the threads of a library, which must never block, to one asyncio task."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from typing import Generic, TypeVar

_T = TypeVar("_T")


class Inbox(Generic[_T]):
    """Items in the order in which they were offered, then the error with which it was closed.

    ``offer`` and ``close`` may be called on any thread and never block; ``get`` only in ``loop``,
    by one task at a time. The bounds hold even while the event loop is blocked.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_items: int, max_bytes: int) -> None:
        self._loop = loop
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._items: deque[tuple[_T, int]] = deque()
        self._num_bytes = 0
        self._closed_with: Exception | None = None
        self._arrival = asyncio.Event()

    def offer(self, item: _T, num_bytes: int) -> bool:
        """Add an item. Return False, dropping it, if a bound is reached or after ``close``."""
        with self._lock:
            is_full = (
                len(self._items) >= self._max_items or self._num_bytes + num_bytes > self._max_bytes
            )
            if is_full or self._closed_with is not None:
                return False
            self._items.append((item, num_bytes))
            self._num_bytes += num_bytes
            is_first = len(self._items) == 1
        if is_first:
            self._wake()
        return True

    def close(self, error: Exception, *, discard: bool = False) -> bool:
        """Stop accepting items; ``error`` is raised after the remaining items were read (or
        discarded).

        Only the first call counts; the others return False.
        """
        with self._lock:
            if self._closed_with is not None:
                return False
            self._closed_with = error
            if discard:
                self._items.clear()
                self._num_bytes = 0
        self._wake()
        return True

    async def get(self) -> _T:
        """Wait for the next item. Raises the error that the queue was closed with."""
        while True:
            with self._lock:
                if self._items:
                    item, num_bytes = self._items.popleft()
                    self._num_bytes -= num_bytes
                    return item
                if self._closed_with is not None:
                    raise self._closed_with
                self._arrival.clear()
            await self._arrival.wait()

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is waiting
            self._loop.call_soon_threadsafe(self._arrival.set)
