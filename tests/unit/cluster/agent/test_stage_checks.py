"""What the kernel says of workers that compute, wait, stand still and hang: real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import msgspec
import psutil
import pytest
from support.processes.waiting import done_within, eventually

from potluck.cluster.agent import hosted_stage, process_stat
from potluck.cluster.agent.hosted_stage import check_worker, work_of
from potluck.cluster.agent.process_stat import is_stopped
from potluck.cluster.agent.worker_process import WorkerProcess
from potluck.cluster.wire.calls import StageCheck
from potluck.cluster.wire.worker_messages import Stats
from potluck.errors import EngineError

IDLE = Stats(
    num_steps=0,
    num_tokens=0,
    compute_seconds=0,
    send_seconds=0,
    num_sent_bytes=0,
    resident_bytes=0,
)
BUSY = Stats(
    num_steps=0,
    num_tokens=0,
    compute_seconds=0,
    send_seconds=0,
    num_sent_bytes=0,
    resident_bytes=0,
    busy_seconds=2.0,
    sending_seconds=0.5,
)

COMPUTES = "threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()"
"""A thread of its own computes, as a worker's does."""
HANGS = """
lock = threading.Lock()
lock.acquire()
threading.Thread(target=lock.acquire).start()
while True: pass
"""
"""One waits for what never comes, and the first thread is no sign that anything is computed."""


class Worker:
    """Answers ``stats``, or nothing at all (None), or has ended."""

    def __init__(self, pid: int, answer: Stats | EngineError | None) -> None:
        self.pid = pid
        self.answer = answer

    async def stats(self) -> Stats | None:
        if self.answer is None:
            await asyncio.sleep(60)
        if isinstance(self.answer, EngineError):
            raise self.answer
        return self.answer


@contextmanager
def process(script: str) -> Iterator[int]:
    ready = "print('ready', flush=True)\n"
    command = [sys.executable, "-c", f"import threading\n{ready}{script}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            eventually(
                lambda: len(os.listdir(f"/proc/{child.pid}/task")) > 1,  # noqa: PTH208
                within=10,
                what="it has two threads",
            )
            if script == HANGS:
                _await_standstill(child.pid)
            yield child.pid
        finally:
            child.kill()


def _await_standstill(pid: int) -> None:
    """Return once the first thread has used the CPU for a while, and the second has not."""

    def has_halted() -> bool:
        work, used = work_of(pid), psutil.Process(pid).cpu_times().user
        eventually(lambda: psutil.Process(pid).cpu_times().user > used + 0.2)
        return work_of(pid) == work

    eventually(has_halted, what="the second thread comes to a halt")


def check(worker: Worker, *, is_cpu: bool = True) -> StageCheck | None:
    return asyncio.run(check_worker(cast(WorkerProcess, worker), is_cpu=is_cpu))


def check_at_once(worker: Worker, *, is_cpu: bool = True) -> StageCheck | None:
    """What need not be looked at for long, and is not."""
    with pytest.MonkeyPatch.context() as patched, done_within(2):
        patched.setattr(hosted_stage, "CHECK_SECONDS", 30.0)
        return check(worker, is_cpu=is_cpu)


def test_one_that_waits_is_well_and_is_not_looked_at_for_long() -> None:
    with process(HANGS) as pid:
        found = check_at_once(Worker(pid, IDLE))
        assert found == StageCheck(answers=True, is_stopped=False, has_progress=True)


@pytest.mark.slow
def test_one_that_computes_makes_progress_whether_it_answers_or_not() -> None:
    with process(COMPUTES) as pid:
        found = check(Worker(pid, BUSY))
        assert found == StageCheck(
            answers=True,
            is_stopped=False,
            has_progress=True,
            busy_seconds=2.0,
            sending_seconds=0.5,
        )
        found = check(Worker(pid, None))
        assert found == StageCheck(answers=False, is_stopped=False, has_progress=True)


@pytest.mark.slow
def test_one_that_is_stopped_is_known_by_the_kernel() -> None:
    with process(COMPUTES) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        with done_within(2):
            found = check(Worker(pid, None))
        assert found == StageCheck(answers=False, is_stopped=True, has_progress=False)
        os.kill(pid, signal.SIGCONT)
        found = check(Worker(pid, BUSY))
        assert found is not None
        assert found.has_progress


@pytest.mark.slow
def test_one_that_is_stopped_for_a_moment_is_not_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_stage, "CHECK_SECONDS", 2.0)
    with process(COMPUTES) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)

        async def run() -> StageCheck | None:
            asyncio.get_running_loop().call_later(0.3, os.kill, pid, signal.SIGCONT)
            return await check_worker(cast(WorkerProcess, Worker(pid, None)), is_cpu=True)

        found = asyncio.run(run())
        assert found == StageCheck(answers=False, is_stopped=False, has_progress=True)


@pytest.mark.slow
def test_one_that_is_busy_and_does_not_use_its_cpu_hangs() -> None:
    with process(HANGS) as pid:
        found = check(Worker(pid, BUSY))
        assert found is not None
        assert (found.answers, found.has_progress) == (True, False)
        # A unit that is no CPU computes by itself.
        found = check_at_once(Worker(pid, BUSY), is_cpu=False)
        assert found is not None
        assert found.has_progress


def test_one_that_has_ended_is_none() -> None:
    found = check(Worker(2**22 + 1, EngineError("it has ended")))
    assert found is None
    assert work_of(2**22 + 1) == (0, 0)
    assert not is_stopped(2**22 + 1)


def test_names_of_processes_do_not_confuse() -> None:
    script = f"open('/proc/self/comm', 'w').write(') T 1 (')\n{COMPUTES}"
    with process(script) as pid:
        assert not is_stopped(pid)
        stat = process_stat.process_stat(pid)
        assert stat is not None
        eventually(lambda: work_of(pid)[0] > 0, within=10, what="its time is read")


def test_a_check_takes_less_than_a_second() -> None:
    assert hosted_stage.CHECK_SECONDS < 1


@pytest.mark.parametrize("text", ["", "1 (name) ", "1 (name) S 1 2"])
def test_what_makes_no_sense_is_no_process(
    text: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path_factory.mktemp("proc")
    (root / "1").mkdir()
    (root / "1" / "stat").write_text(text)
    monkeypatch.setattr(process_stat, "_PROC", root)
    assert process_stat.process_stat(1) is None


@pytest.mark.slow
def test_a_member_that_waits_for_another_one_is_not_to_blame() -> None:
    """Of a group that stands still, each member but the culprit waits in an exchange."""
    waiting = msgspec.structs.replace(BUSY, waiting_seconds=1.5, sending_seconds=0.0)
    with process(HANGS) as pid:
        found = check(Worker(pid, BUSY))
        assert found is not None
        assert not found.has_progress
        found = check_at_once(Worker(pid, waiting))
        assert found == StageCheck(answers=True, is_stopped=False, has_progress=True)
