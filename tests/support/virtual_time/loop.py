"""An event loop whose clock is virtual: it jumps to whatever is due next.

The coordinator's own coroutines run in it unchanged, thousands of virtual seconds in a moment, and
in the same order for the same seed.
"""

from __future__ import annotations

import asyncio
import heapq
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVarTuple, Unpack

Owner = set["asyncio.Task[Any]"]
"""The tasks of one process, which end with it."""

owner: ContextVar[Owner | None] = ContextVar("owner", default=None)
"""Whose tasks those are that the present code starts."""


_Ts = TypeVarTuple("_Ts")


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as code without real I/O asks for.

    What is handed to a thread runs when ``thread_seconds`` have passed. ``problems`` has what
    nobody has handled.
    """

    def __init__(self, thread_seconds: Callable[[], float]) -> None:
        self.problems: list[str] = []
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._num_timers = 0
        self._thread_seconds = thread_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    def time(self) -> float:
        return self._now

    def run_until(self, when: float) -> None:
        """Run all that is due up to ``when``."""
        self._run(when, lambda: False)
        self._now = when

    def run_until_done(self, task: asyncio.Task[Any], when: float) -> None:
        """Run what is due, until ``task`` is done or nothing more is due up to ``when``."""
        self._run(when, task.done)

    def _run(self, when: float, is_over: Callable[[], bool]) -> None:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        asyncio._set_running_loop(self)
        try:
            while True:
                while self._ready:
                    handle = self._ready.popleft()
                    if not handle._cancelled:
                        handle._run()
                timers = self._timers
                while timers and timers[0][2]._cancelled:
                    heapq.heappop(timers)
                if is_over() or not timers or timers[0][0] > when:
                    break
                self._now = timers[0][0]
                while timers and timers[0][0] <= self._now:
                    self._ready.append(heapq.heappop(timers)[2])
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def shut_down(self) -> None:
        """Cancel every task, and run until all have ended."""
        for _ in range(100):
            if not self._tasks:
                return
            for task in list(self._tasks):
                task.cancel()
            self.run_until(self._now + 60.0)
        self.problems.append(f"{len(self._tasks)} tasks do not end")

    def call_soon(
        self,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._num_timers += 1
        heapq.heappush(self._timers, (when, self._num_timers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, Any],  # type: ignore[override]
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        tasks = owner.get()
        if tasks is not None:
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - it is the future's
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._thread_seconds(), run)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.problems.append(f"{context['message']}: {type(error).__name__}: {error}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.call_soon(self.create_task, generator.aclose())
