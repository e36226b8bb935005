"""Per-peer send queues, so that a peer that does not read delays no other peer.

An outbox is a queue and, while there is work, a thread. Work beyond its bounds is refused.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from potluck.cluster.network.membership.messages import left_error
from potluck.errors import CallError

_T = TypeVar("_T")

MAX_WAITING_SENDS = 1024
MAX_WAITING_BYTES = 16 << 20
"""The limit per peer: a second or two of a slow link, and little of a small board's memory."""

_IDLE_SECONDS = 5.0
"""How long an idle outbox keeps its thread: a stream should not need a new one for each token."""


_LOOK_SECONDS = 0.002
"""How often to check whether a peer reads again: little compared with the round trip of a full
link."""


@dataclass(slots=True, kw_only=True)
class _Job:
    run: Callable[[], None]
    refuse: Callable[[], None]
    num_bytes: int


@dataclass(slots=True)
class _Outbox:
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    num_waiting: int = 0
    num_bytes: int = 0
    thread: threading.Thread | None = None


class Outboxes:
    """An outbox for each peer, created when first used. Thread-safe.

    An outbox starts no job before ``is_clear(peer)``.
    """

    def __init__(self, name: str, is_clear: Callable[[str], bool]) -> None:
        self._name = name
        self._is_clear = is_clear
        self._lock = threading.Lock()
        self._outboxes: dict[str, _Outbox] = {}
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Whether no thread is left. After ``close`` this stays so once it is so."""
        with self._lock:
            threads = [each.thread for each in self._outboxes.values()]
        return not any(thread is not None and thread.is_alive() for thread in threads)

    def submit(
        self, peer: str, work: Callable[[], _T], *, num_bytes: int = 0, is_last: bool = False
    ) -> Future[_T]:
        """Run ``work`` after everything submitted for ``peer`` before.

        ``is_last`` is for the message that ends a call, which is accepted beyond the bounds. Raises
        ``CallError`` if too much is waiting for this peer, if this process can start no thread for
        it, and after ``close``.
        """
        future: Future[_T] = Future()
        job = _job(work, future, num_bytes)
        with self._lock:
            if self._is_closed:
                raise left_error()
            outbox = self._outboxes.get(peer)
            if outbox is None:
                outbox = self._start(peer)
            is_full = (
                outbox.num_waiting >= MAX_WAITING_SENDS
                or outbox.num_bytes + num_bytes > MAX_WAITING_BYTES
            )
            if is_full and not is_last:
                raise CallError(
                    f"the node reads messages too slowly: {outbox.num_waiting} waiting, "
                    f"{outbox.num_bytes:,} bytes"
                )
            outbox.num_waiting += 1
            outbox.num_bytes += num_bytes
            outbox.jobs.put(job)
        return future

    def close(self) -> None:
        """Stop accepting work; jobs that have not started fail with ``CallError``.

        Threads end with the job that they run, if any.
        """
        with self._lock:
            self._is_closed = True
            outboxes = list(self._outboxes.values())
        for outbox in outboxes:
            with contextlib.suppress(queue.Empty):
                while True:
                    job = outbox.jobs.get_nowait()
                    if job is not None:
                        job.refuse()
            outbox.jobs.put(None)  # stops its thread

    def _start(self, peer: str) -> _Outbox:
        """Start the outbox of a peer, and keep it if that succeeds."""
        outbox = _Outbox()
        # A daemon thread: exit must not wait for a peer that does not read.
        outbox.thread = threading.Thread(
            target=self._serve, args=(peer, outbox), name=self._name, daemon=True
        )
        try:
            outbox.thread.start()
        except RuntimeError as error:
            raise CallError(f"cannot send a message: {error}") from error
        self._outboxes[peer] = outbox
        return outbox

    def _serve(self, peer: str, outbox: _Outbox) -> None:
        while True:
            try:
                job = outbox.jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if outbox.jobs.empty():
                        del self._outboxes[peer]
                        return
                continue
            if job is None:
                return
            while not self._is_clear(peer) and not self._is_closed:
                time.sleep(_LOOK_SECONDS)
            if self._is_closed:
                job.refuse()
                return
            job.run()
            with self._lock:
                outbox.num_waiting -= 1
                outbox.num_bytes -= job.num_bytes


def _job(work: Callable[[], _T], future: Future[_T], num_bytes: int) -> _Job:
    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - passed on to the waiter
            future.set_exception(error)
        else:
            future.set_result(result)

    def refuse() -> None:
        if future.set_running_or_notify_cancel():
            future.set_exception(left_error())

    return _Job(run=run, refuse=refuse, num_bytes=num_bytes)
