from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from support.processes.waiting import eventually

from potluck.cluster.network.membership import outboxes
from potluck.cluster.network.membership.outboxes import Outboxes
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
        assert made.submit(peer, lambda peer=peer: peer).result(20) == peer  # type: ignore[misc]
    assert done == []
    is_open.set()
    for future in blocked:
        future.result(20)
    assert done == list(range(50))


def test_beyond_a_bound_only_what_ends_a_call_is_taken(
    made: Outboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outboxes, "MAX_WAITING_SENDS", 3)
    monkeypatch.setattr(outboxes, "MAX_WAITING_BYTES", 100)
    is_open = threading.Event()
    waiting: list[Future[Any]] = [made.submit("slow", is_open.wait, num_bytes=60)]
    with pytest.raises(CallError, match="too slowly: 1 waiting, 60 bytes"):
        made.submit("slow", int, num_bytes=41)
    waiting += [made.submit("slow", int, num_bytes=20) for _ in range(2)]
    with pytest.raises(CallError, match="too slowly: 3 waiting, 100 bytes"):
        made.submit("slow", int)
    waiting.append(made.submit("slow", int, num_bytes=999, is_last=True))
    assert made.submit("other", int, num_bytes=100).result(20) == 0
    is_open.set()
    for future in waiting:
        future.result(20)
    assert made.submit("slow", int, num_bytes=100).result(20) == 0, "the bytes were not given back"


def test_a_peer_is_sent_to_again_once_threads_can_be_started(
    made: Outboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refused)
        with pytest.raises(CallError, match="cannot send a message: can't start new thread"):
            made.submit("peer", int)
    assert made.submit("peer", int).result(20) == 0


def test_failures_reach_who_waits_and_the_lane_goes_on(made: Outboxes) -> None:
    with pytest.raises(ZeroDivisionError):
        made.submit("peer", lambda: 1 // 0).result(20)
    assert made.submit("peer", int).result(20) == 0


def test_an_idle_lane_keeps_no_thread(made: Outboxes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "_IDLE_SECONDS", 0.05)

    def num_threads() -> int:
        return sum(thread.name == "test-outbox" for thread in threading.enumerate())

    made.submit("peer", int).result(20)
    eventually(lambda: num_threads() == 0, within=2)
    for _ in range(200):  # also while a thread is about to end
        made.submit("peer", int).result(20)
        time.sleep(0.0005)


def test_nothing_waits_or_runs_after_the_close(made: Outboxes) -> None:
    is_begun, is_open = threading.Event(), threading.Event()

    def run() -> bool:
        is_begun.set()
        return is_open.wait()

    running = made.submit("peer", run)
    waiting = made.submit("peer", int)
    assert is_begun.wait(20)
    made.close()
    with pytest.raises(CallError, match="has left the cluster"):
        waiting.result(20)
    with pytest.raises(CallError, match="has left the cluster"):
        made.submit("peer", int)
    is_open.set()
    assert running.result(20) is True


def test_nothing_is_begun_for_a_peer_that_is_not_clear() -> None:
    full = {"full"}
    made = Outboxes("test-outbox", lambda peer: peer not in full)
    waiting = made.submit("full", int)
    assert made.submit("other", int).result(20) == 0
    time.sleep(0.05)
    assert not waiting.done()
    full.clear()
    assert waiting.result(20) == 0
    full.add("full")
    waiting = made.submit("full", int)
    time.sleep(0.05)
    made.close()
    with pytest.raises(CallError, match="has left"):
        waiting.result(20)
