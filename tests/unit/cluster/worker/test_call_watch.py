"""Calls that do not return are seen from another thread."""

from __future__ import annotations

import queue
import threading
import time

import pytest

from potluck.cluster.worker.watch import CallWatch


def test_a_call_that_outlasts_its_limit_is_told_once() -> None:
    told: queue.SimpleQueue[tuple[str, float]] = queue.SimpleQueue()
    others = set(threading.enumerate())
    watch = CallWatch(0.05, lambda what, limit: told.put((what, limit)))
    started = time.monotonic()
    with watch.call("a step"):
        assert told.get(timeout=5) == ("a step", 0.05)
        assert 0.05 < time.monotonic() - started < 2
        time.sleep(0.1)
    for thread in set(threading.enumerate()) - others:
        thread.join(timeout=5)
        assert not thread.is_alive()
    assert told.empty()


def test_calls_within_their_limits_are_none_of_its_business() -> None:
    told: list[str] = []
    watch = CallWatch(0.1, lambda what, limit: told.append(what))
    for _ in range(4):
        with watch.call("a step"):
            time.sleep(0.04)
    with watch.call("compiling", times=10):
        time.sleep(0.3)
    time.sleep(0.2)  # between two calls nothing is late
    watch.close()
    assert told == []


@pytest.mark.parametrize("limit", [None, 60.0])
def test_how_long_a_call_has_taken(limit: float | None) -> None:
    watch = CallWatch(limit, lambda *_: None)
    assert watch.busy_seconds == 0
    with watch.call("a step"):
        time.sleep(0.02)
        assert watch.busy_seconds >= 0.02
    assert watch.busy_seconds == 0
    watch.close()
