"""Calls that do not return are seen from another thread."""

from __future__ import annotations

import queue
import threading
import time

import pytest
from support.processes.waiting import done_within

from potluck.cluster.worker.watch import CallWatch


def test_a_call_that_outlasts_its_limit_is_told_once() -> None:
    reports: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    others = set(threading.enumerate())
    watch = CallWatch(0.05, lambda what, limit: reports.put((what, limit)))
    started = time.monotonic()
    with watch.call("a step"):
        with done_within(1):
            assert reports.get(timeout=20) == ("a step", 0.05)
        assert time.monotonic() - started > 0.05
        time.sleep(0.1)
    for thread in set(threading.enumerate()) - others:
        thread.join(timeout=20)
        assert not thread.is_alive()
    assert reports.empty()


@pytest.mark.slow
def test_calls_within_their_limits_are_none_of_its_business() -> None:
    reports: list[str] = []
    watch = CallWatch(1.0, lambda what, limit: reports.append(what))
    for _ in range(6):
        with watch.call("a step"):
            time.sleep(0.2)
    with watch.call("compiling", times=10):
        time.sleep(1.3)
    time.sleep(1.3)  # between two calls nothing is late
    watch.close()
    assert reports == []


@pytest.mark.parametrize("limit", [None, 60.0])
def test_how_long_a_call_has_taken(limit: float | None) -> None:
    watch = CallWatch(limit, lambda *_: None)
    assert watch.busy_seconds == 0
    with watch.call("a step"):
        time.sleep(0.02)
        assert watch.busy_seconds >= 0.02
    assert watch.busy_seconds == 0
    watch.close()
