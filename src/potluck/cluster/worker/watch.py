"""A worker's calls into its device, and their deadline.

A driver may never return from a call. The calling thread is then lost, and the worker with it; the
thread of this module can still report the reason, and exit the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOKS = 4
"""Checks per deadline: a hung call is detected at most a quarter of the deadline late."""

_MAX_PAUSE_SECONDS = 1.0

COMPILING_TIMES = 20.0
"""Multiple of a step's limit for work before the first step: a cold driver compiles some dozen
kernels, which takes minutes on a slow board."""

STEP_TOKENS = 32
"""A step may take the limit once per this many tokens: a prefill is that much longer."""
LONGEST_STEP_TIMES = 8.0
"""And at most this many times the limit."""

OnHung = Callable[[str, float], None]
"""Called with the name of the call and its time limit in seconds."""


class CallWatch:
    """Watches one thread's calls, one at a time.

    ``on_hung`` is called once, on the watch's own thread, when a call exceeds ``limit_seconds`` (or
    its own longer limit). Without a limit nothing is watched, there is no thread, and only
    ``busy_seconds`` is known.
    """

    def __init__(self, limit_seconds: float | None, on_hung: OnHung) -> None:
        self._limit_seconds = limit_seconds
        self._on_hung = on_hung
        self._call: _Call | None = None
        self._is_over = threading.Event()
        if limit_seconds is not None:
            threading.Thread(
                target=self._watch, args=(limit_seconds,), name="watch", daemon=True
            ).start()

    @property
    def busy_seconds(self) -> float:
        """Return how long the current call has taken; 0 between two. From any thread."""
        call = self._call
        return 0.0 if call is None else time.monotonic() - call.started

    @contextmanager
    def call(self, what: str, *, times: float = 1.0) -> Iterator[None]:
        """Watch the calls in the block, which may take ``times`` the limit."""
        limit = None if self._limit_seconds is None else times * self._limit_seconds
        self._call = _Call(what, limit)
        try:
            yield
        finally:
            self._call = None

    def close(self) -> None:
        """Stop watching."""
        self._is_over.set()

    def _watch(self, limit_seconds: float) -> None:
        pause = min(_MAX_PAUSE_SECONDS, limit_seconds / _LOOKS)
        while not self._is_over.wait(pause):
            call = self._call
            if call is None or call.limit_seconds is None:
                continue
            if time.monotonic() - call.started > call.limit_seconds:
                self._on_hung(call.what, call.limit_seconds)
                return


class _Call:
    __slots__ = ("limit_seconds", "started", "what")

    def __init__(self, what: str, limit_seconds: float | None) -> None:
        self.what = what
        self.limit_seconds = limit_seconds
        self.started = time.monotonic()
