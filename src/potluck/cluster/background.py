"""Background tasks, calls that share an answer, threads that nothing waits for, and waits with a
time limit.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Hashable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from potluck.errors import EngineError

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

LIMITS_HINT = "see the limits of this node's processes and memory: ulimit -u, pids.max"
"""Where a process or a thread cannot be started."""

Spawn = Callable[[Coroutine[Any, Any, object]], asyncio.Task[Any]]


class Background:
    """Tasks that run until they are done or are cancelled. For use in one loop.

    ``failure`` is logged with every exception that a task raises.
    """

    def __init__(self, failure: str = "unexpected error in a background task of the agent") -> None:
        self._failure = failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[Any]:
        """Run ``work``; an exception that it raises is logged."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def cancel(self) -> None:
        """Cancel all running tasks."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Cancel all running tasks, and wait for their end."""
        await cancel_all(self._tasks)

    async def end(self, spared: asyncio.Task[None] | None, *, timeout_seconds: float) -> int:
        """Cancel all tasks except ``spared`` and the caller's own, and wait for them and for
        ``spared``.

        Return how many have not ended in time.
        """
        waiting = self._tasks - {asyncio.current_task()}
        for task in waiting - {spared}:
            task.cancel()
        if not waiting:
            return 0
        _, unwilling = await asyncio.wait(waiting, timeout=timeout_seconds)
        return len(unwilling)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error(self._failure, exc_info=error)


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait for their end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)


async def is_done_within(task: asyncio.Future[Any], seconds: float) -> bool:
    """Wait for a task, for at most ``seconds``; return whether it is done."""
    await asyncio.wait({task}, timeout=seconds)
    return task.done()


class SharedCalls(Generic[_T]):
    """Makes calls; concurrent calls with the same key share one answer. For use in one loop."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Future[_T]] = {}

    async def call(self, ask: Callable[[], Coroutine[Any, Any, _T]], key: Hashable = None) -> _T:
        """Return the answer of the call with ``key`` that is in progress, or else of ``ask``.

        The call continues if a caller is cancelled.
        """
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = asyncio.ensure_future(ask())
            running.add_done_callback(partial(self._finished, key))
        return await asyncio.shield(running)

    def _finished(self, key: Hashable, running: asyncio.Future[_T]) -> None:
        del self._running[key]
        if not running.cancelled():
            running.exception()  # the callers get it; there may be none left


def in_loop(loop: asyncio.AbstractEventLoop) -> Callable[[float, Callable[[], None]], None]:
    """Return a function that calls functions in ``loop`` after a delay; for any thread."""

    def post(seconds: float, work: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed, and so is everything else
            loop.call_soon_threadsafe(loop.call_later, seconds, work)

    return post


def on_thread(
    work: Callable[[], _T], *, name: str, unwanted: Callable[[_T], None] = lambda result: None
) -> asyncio.Future[_T]:
    """Run ``work`` on a thread that nothing has to wait for, not even the end of the process.

    The result goes to ``unwanted`` if the future was cancelled by then, or the loop is closed. The
    future fails with ``EngineError`` if no thread can be started.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def succeed(result: _T) -> None:
        if done.done():
            unwanted(result)
        else:
            done.set_result(result)

    def fail(error: Exception) -> None:
        if not done.done():
            done.set_exception(error)

    def run() -> None:
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - passed on to the waiting caller
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(fail, error)
            return
        try:
            loop.call_soon_threadsafe(succeed, result)
        except RuntimeError:
            unwanted(result)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        done.set_exception(EngineError(f"cannot start a thread: {error}", hint=LIMITS_HINT))
    return done


async def is_set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait for an event, for at most ``seconds``; return whether it is set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
