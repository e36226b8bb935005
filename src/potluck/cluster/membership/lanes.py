"""Sends that may wait for the network, apart for each peer: one that does not read delays no other.

A lane is a queue and, while there is work, a thread. What is offered beyond its bounds is refused.
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

from potluck.errors import CallError

_T = TypeVar("_T")

MAX_WAITING_SENDS = 1024
MAX_WAITING_BYTES = 16 << 20
"""What may wait for one peer: a second or two of a slow line, and little beside a small board's
memory."""

_IDLE_SECONDS = 5.0
"""How long a lane keeps its thread without work: a stream of tokens needs no new one for each."""


_LOOK_SECONDS = 0.002
"""How often to see whether a peer takes more: little beside the round trip of a full link."""


@dataclass(slots=True, kw_only=True)
class _Job:
    run: Callable[[], None]
    refuse: Callable[[], None]
    num_bytes: int


@dataclass(slots=True)
class _Lane:
    jobs: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    num_waiting: int = 0
    num_bytes: int = 0


class Lanes:
    """A lane for each peer, made when something is sent to it. For use on any thread.

    A lane begins no work before ``is_clear(peer)``.
    """

    def __init__(self, name: str, is_clear: Callable[[str], bool]) -> None:
        self._name = name
        self._is_clear = is_clear
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._is_closed = False

    def submit(
        self, peer: str, work: Callable[[], _T], *, num_bytes: int = 0, is_last: bool = False
    ) -> Future[_T]:
        """Do ``work`` after what was submitted for ``peer`` before.

        ``is_last``: what ends a call is taken beyond the bounds too. Raises ``CallError`` when as
        much waits for this peer as may, and after ``close``.
        """
        future: Future[_T] = Future()
        job = _job(work, future, num_bytes)
        with self._lock:
            if self._is_closed:
                raise _left()
            lane = self._lanes.get(peer)
            if lane is None:
                lane = self._lanes[peer] = _Lane()
                # A daemon: the interpreter's end does not wait for a peer that does not read.
                threading.Thread(
                    target=self._serve, args=(peer, lane), name=self._name, daemon=True
                ).start()
            is_full = (
                lane.num_waiting >= MAX_WAITING_SENDS
                or lane.num_bytes + num_bytes > MAX_WAITING_BYTES
            )
            if is_full and not is_last:
                raise CallError(
                    f"the node takes messages too slowly: {lane.num_waiting} of them with "
                    f"{lane.num_bytes:,} bytes wait for it"
                )
            lane.num_waiting += 1
            lane.num_bytes += num_bytes
            lane.jobs.put(job)
        return future

    def close(self) -> None:
        """Take nothing more; what has not begun fails with ``CallError``."""
        with self._lock:
            self._is_closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            with contextlib.suppress(queue.Empty):
                while True:
                    job = lane.jobs.get_nowait()
                    if job is not None:
                        job.refuse()
            lane.jobs.put(None)  # have its thread end

    def _serve(self, peer: str, lane: _Lane) -> None:
        while True:
            try:
                job = lane.jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if lane.jobs.empty():
                        del self._lanes[peer]
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
                lane.num_waiting -= 1
                lane.num_bytes -= job.num_bytes


def _job(work: Callable[[], _T], future: Future[_T], num_bytes: int) -> _Job:
    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for it has to know
            future.set_exception(error)
        else:
            future.set_result(result)

    def refuse() -> None:
        if future.set_running_or_notify_cancel():
            future.set_exception(_left())

    return _Job(run=run, refuse=refuse, num_bytes=num_bytes)


def _left() -> CallError:
    return CallError("this node has left the cluster")
