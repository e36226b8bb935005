"""A signal that something has changed, for tasks that wait for the next change."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Changes:
    """For use in one event loop.

    A change between the return of ``wait`` and its next call is missed, unless the caller checks
    the changed state in between without awaiting anything.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def notify(self) -> None:
        """Wake everyone who waits."""
        now, self._next = self._next, asyncio.Event()
        now.set()

    async def wait(self, seconds: float | None = None) -> None:
        """Return at the next change, or after ``seconds``."""
        waiting = self._next
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting.wait()
