"""Run a coroutine as ``asyncio.run`` does, in virtual time: no pause of a busy machine is seen.

Give a ``ManualClock`` to code that takes a clock and needs no loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from support.virtual_time.loop import VirtualLoop

T = TypeVar("T")

_MOST_SECONDS = 3600.0
"""Of virtual time."""

_THREAD_SECONDS = 0.001
_POLL_SECONDS = 0.005


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return what ``coroutine`` returns, whose sleeps and timeouts take no time.

    It may wait for nothing but other tasks: not for sockets, processes or threads of its own. What
    it hands to a thread runs in the loop.
    """
    loop = VirtualLoop(lambda: _THREAD_SECONDS)  # type: ignore[abstract]
    task: asyncio.Task[T] = loop.create_task(coroutine)
    try:
        loop.run_until_done(task, _MOST_SECONDS)
        assert task.done(), "it waits for what never happens"
        return task.result()
    finally:
        loop.shut_down()
        assert not loop.problems, loop.problems


async def reach(
    condition: Callable[[], object], *, within: float = 5, what: str = "it happens"
) -> None:
    """Wait for ``condition``. Fail the test after ``within`` virtual seconds exactly.

    ``waiting.until`` waits longer, as a busy machine needs, and looks less often.
    """
    clock = asyncio.get_running_loop().time
    deadline = clock() + within
    while not condition():
        assert clock() < deadline, f"not within {within} virtual seconds: {what}"
        await asyncio.sleep(_POLL_SECONDS)


@dataclass
class ManualClock:
    now: float

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
