"""Clients that watch the cluster, and their pending notices. Bounded.

A client that reads slowly delays nobody: only the latest view of the cluster is kept for it, and
when ``MAX_NOTICES`` other notices are pending it is disconnected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from potluck.errors import OverloadedError
from potluck.types.console import Notice

MAX_WATCHERS = 32
MAX_NOTICES = 640
"""Enough for all events that are kept, and samples for two minutes."""

_RETRY_AFTER_SECONDS = 10


class Watchers:
    """The watchers. For use in the agent's event loop. ``on_first`` is called when one is added."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._watchers: set[Watcher] = set()

    def __len__(self) -> int:
        return len(self._watchers)

    def add(self, notices: Sequence[Notice]) -> Watcher:
        """Add a watcher, which gets ``notices`` first. Raises ``OverloadedError``."""
        if len(self._watchers) >= MAX_WATCHERS:
            raise OverloadedError(
                f"{MAX_WATCHERS} clients are already watching the cluster",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        watcher = Watcher(self._watchers.discard)
        for notice in notices:
            watcher.notify(notice)
        self._watchers.add(watcher)
        if len(self._watchers) == 1:
            self._on_first()
        return watcher

    def notify(self, notice: Notice) -> None:
        """Send a notice to all watchers."""
        for watcher in self._watchers:
            watcher.notify(notice)


class Watcher:
    """One client's pending notices; see ``potluck.types.console.Watch``. ``closed`` is called at
    its end.
    """

    def __init__(self, closed: Callable[[Watcher], None]) -> None:
        self._closed = closed
        self._cluster: Notice | None = None
        self._notices: deque[Notice] = deque()
        self._is_cut_off = False
        self._news = asyncio.Event()

    def notify(self, notice: Notice) -> None:
        """Keep a notice until it is read."""
        if notice.kind == "cluster":
            self._cluster = notice
        elif len(self._notices) < MAX_NOTICES:
            self._notices.append(notice)
        else:
            self._is_cut_off = True
        self._news.set()

    async def take(self, seconds: float) -> Sequence[Notice]:
        """See ``Watch``."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        if self._is_cut_off:
            raise OverloadedError(
                "the stream was not read fast enough", retry_after_seconds=_RETRY_AFTER_SECONDS
            )
        cluster, self._cluster = self._cluster, None
        notices = [] if cluster is None else [cluster]
        notices += self._notices
        self._notices.clear()
        return notices

    def close(self) -> None:
        """See ``Watch``."""
        self._closed(self)
