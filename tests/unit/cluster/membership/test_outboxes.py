from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from potluck.cluster.membership import outboxes
from potluck.cluster.membership.outboxes import Outboxes
from potluck.errors import CallError


@pytest.fixture
def made() -> Iterator[Outboxes]:
    made = Outboxes("test-outbox", lambda peer: True)
    yield made
    made.close()


def test_what_waits_for_one_peer_delays_no_other_and_keeps_its_order(made: Outboxes) -> None:
    is_open = threading.Event()
    done: list[int] = []
    blocked: list[Future[Any]] = [made.submit("dead", is_open.wait)]
    blocked += [made.submit("dead", lambda n=n: done.append(n)) for n in range(50)]  # type: ignore[misc]
    for number in range(20):
        peer = f"peer {number}"
        assert made.submit(peer, lambda peer=peer: peer).result(1) == peer  # type: ignore[misc]
    assert done == []
    is_open.set()
    for future in blocked:
        future.result(1)
    assert done == list(range(50))


def test_beyond_a_bound_only_what_ends_a_call_is_taken(
    made: Outboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "MAX_WAITING_SENDS", 3)
    monkeypatch.setattr(outboxes, "MAX_WAITING_BYTES", 100)
    is_open = threading.Event()
    waiting: list[Future[Any]] = [made.submit("slow", is_open.wait, num_bytes=60)]
    with pytest.raises(CallError, match="too slowly: 1 of them with 60 bytes wait"):
        made.submit("slow", int, num_bytes=41)
    waiting += [made.submit("slow", int, num_bytes=20) for _ in range(2)]
    with pytest.raises(CallError, match="too slowly: 3 of them with 100 bytes wait"):
        made.submit("slow", int)
    waiting.append(made.submit("slow", int, num_bytes=999, is_last=True))
    assert made.submit("other", int, num_bytes=100).result(1) == 0
    is_open.set()
    for future in waiting:
        future.result(1)
    assert made.submit("slow", int, num_bytes=100).result(1) == 0, "the bytes were not given back"


def test_failures_reach_who_waits_and_the_lane_goes_on(made: Outboxes) -> None:
    with pytest.raises(ZeroDivisionError):
        made.submit("peer", lambda: 1 // 0).result(1)
    assert made.submit("peer", int).result(1) == 0


def test_an_idle_lane_keeps_no_thread(made: Outboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "_IDLE_SECONDS", 0.05)

    def num_threads() -> int:
        return sum(thread.name == "test-outbox" for thread in threading.enumerate())

    made.submit("peer", int).result(1)
    deadline = time.monotonic() + 2
    while num_threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads() == 0
    for _ in range(200):  # also while a thread is about to end
        made.submit("peer", int).result(1)
        time.sleep(0.0005)


def test_nothing_waits_or_runs_after_the_close(made: Outboxes) -> None:
    is_open = threading.Event()
    running = made.submit("peer", is_open.wait)
    waiting = made.submit("peer", int)
    time.sleep(0.05)
    made.close()
    with pytest.raises(CallError, match="has left the cluster"):
        waiting.result(1)
    with pytest.raises(CallError, match="has left the cluster"):
        made.submit("peer", int)
    is_open.set()
    assert running.result(1) is True


def test_nothing_is_begun_for_a_peer_that_is_not_clear() -> None:
    full = {"full"}
    made = Outboxes("test-outbox", lambda peer: peer not in full)
    waiting = made.submit("full", int)
    assert made.submit("other", int).result(1) == 0
    time.sleep(0.05)
    assert not waiting.done()
    full.clear()
    assert waiting.result(1) == 0
    full.add("full")
    waiting = made.submit("full", int)
    time.sleep(0.05)
    made.close()
    with pytest.raises(CallError, match="has left"):
        waiting.result(1)
