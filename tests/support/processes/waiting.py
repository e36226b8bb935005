"""Waiting for what other threads and processes do.

Times are those of a machine that does nothing else. Here other tests keep every core busy, so a
wait or a block fails only after :data:`PATIENCE` times as long. A test that claims a time more
closely asserts it itself, and is marked ``timing`` if a busy machine could break it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

PATIENCE = 4


def eventually(
    condition: Callable[[], object], *, within: float = 10, what: str = "it happens"
) -> float:
    """Wait for ``condition``; the seconds it took. Fails the test when it takes too long."""
    start = time.monotonic()
    for pause in _pauses(condition, within, what, time.monotonic):
        time.sleep(pause)
    return time.monotonic() - start


async def until(
    condition: Callable[[], object], *, within: float = 10, what: str = "it happens"
) -> float:
    """:func:`eventually`, letting other tasks run."""
    clock = asyncio.get_running_loop().time
    start = clock()
    for pause in _pauses(condition, within, what, clock):
        await asyncio.sleep(pause)
    return clock() - start


@contextlib.contextmanager
def done_within(seconds: float, what: str = "it is done") -> Iterator[None]:
    """Fail the test when the block takes too long."""
    start = time.monotonic()
    yield
    elapsed_seconds = time.monotonic() - start
    if elapsed_seconds > PATIENCE * seconds:
        raise AssertionError(
            f"not within {PATIENCE} times {seconds} s, but {elapsed_seconds:.1f} s: {what}"
        )


def _pauses(
    condition: Callable[[], object], within: float, what: str, clock: Callable[[], float]
) -> Iterator[float]:
    """Yield the seconds to wait before ``condition`` is looked at again, until it holds.

    Short ones first, then longer: looking takes time of those that are waited for.
    """
    start = clock()
    pause = 0.005
    while not condition():
        if clock() - start > PATIENCE * within:
            raise AssertionError(f"not within {PATIENCE} times {within} s: {what}")
        yield pause
        pause = min(1.2 * pause, 0.1)
