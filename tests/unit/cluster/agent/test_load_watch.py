"""Which workers count as stalled, by a clock and an activity that the test plays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from support.processes.waiting import eventually

from potluck.cluster.agent.load_watch import Activity, LoadWatch, process_activity


class Played:
    """A watch of 8 seconds over a process that does what the test says."""

    def __init__(self) -> None:
        self.now = 100.0
        self.activity: Activity = (1.0, 2.0)
        self.is_stopped = False
        self.watch = LoadWatch(
            1,
            8.0,
            activity_of=lambda _: self.activity,
            is_stopped=lambda _: self.is_stopped,
            clock=lambda: self.now,
        )

    def looks(self, seconds: float) -> str:
        self.now += seconds
        return self.watch.check()


def test_one_that_does_nothing_has_stalled_after_the_bound_and_no_sooner() -> None:
    played = Played()
    assert played.watch.check_seconds == 0.5
    assert not any(played.looks(1.0) for _ in range(7))
    assert played.looks(1.0) == "its worker made no progress for 8 s while it loaded"


def test_one_that_the_kernel_says_was_stopped_is_given_up_sooner() -> None:
    played = Played()
    played.is_stopped = True
    assert not any(played.looks(0.5) for _ in range(6))
    assert "stopped by a signal" in played.looks(0.6)


def test_one_that_goes_on_is_kept() -> None:
    played = Played()
    for step in range(10):
        played.is_stopped = True
        assert not any(played.looks(0.5) for _ in range(5))
        if step % 2:
            played.is_stopped = False  # seen to run
            assert not played.looks(0.5)
        else:
            played.activity = (2.0 + step, 2.0)  # it ran unseen


def test_whatever_moves_counts_as_progress() -> None:
    played = Played()
    for step in range(20):
        played.activity = (1.0 + step, 2.0) if step % 2 else (played.activity[0], 3.0 + step)
        assert not played.looks(7.0)
    played.watch.progressed()
    assert not played.looks(7.9)
    assert played.looks(0.1)


def test_a_process_that_is_gone_has_no_activity() -> None:
    assert process_activity(2**22 + 1) == ()


def test_a_process_that_is_stopped_does_nothing_and_one_that_computes_does() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            before = process_activity(process.pid)
            eventually(
                lambda: process_activity(process.pid) != before, within=10, what="it computes"
            )
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
            stopped = process_activity(process.pid)
            time.sleep(0.2)
            assert process_activity(process.pid) == stopped
        finally:
            process.kill()
