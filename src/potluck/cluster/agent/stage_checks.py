"""Checks whether the worker of a stage that others wait for makes progress.

A worker that computes answers its agent on another thread, and uses the CPU. One that was stopped,
is frozen with its control group, or hangs in the kernel does neither. The kernel is asked, so that
a hung worker need not run any code.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from potluck.cluster.agent.process_stat import is_stopped, other_threads
from potluck.cluster.calls import StageCheck
from potluck.cluster.worker.messages import Stats
from potluck.errors import PotluckError

CHECK_SECONDS = 0.75
"""The time for a worker to answer, or to be seen computing: one that shares a core with 50 others
runs every 0.2 s or so (slices of 3 to 4 ms)."""

_LOOK_SECONDS = 0.05

Work = tuple[int, int]


class Checked(Protocol):
    """A stage's worker."""

    @property
    def pid(self) -> int:
        """Return the process id."""
        ...

    async def stats(self) -> Stats | None:
        """See ``WorkerProcess.stats``."""
        ...


def work_of(pid: int) -> Work:
    """Return numbers that grow while a worker computes: CPU time and pages read, of all threads but
    the first, which only answers the agent.
    """
    threads = other_threads(pid)
    return (
        sum(thread.cpu_time for thread in threads),
        sum(thread.num_major_faults for thread in threads),
    )


async def check_worker(worker: Checked, *, is_cpu: bool) -> StageCheck | None:
    """Observe a worker for ``CHECK_SECONDS``, or until all is well; None for one that has exited.

    With ``is_cpu`` it computes on the CPU, and makes no progress if it is busy but uses no CPU
    time. Other workers wait for their unit, and watch it themselves.
    """
    was_stopped, work = is_stopped(worker.pid), work_of(worker.pid)
    deadline = time.monotonic() + CHECK_SECONDS
    stats: Stats | None = None
    answers = True
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            stats = await worker.stats()
    except TimeoutError:
        answers = False
    except PotluckError:
        return None
    # A worker that waits for another member of its group is idle: that member is asked, too.
    is_busy = stats is not None and not stats.waiting_seconds
    busy_seconds = stats.busy_seconds if stats is not None and is_busy else 0.0
    has_progress = answers and (busy_seconds == 0 or not is_cpu)
    while not (has_progress := has_progress or work_of(worker.pid) != work):
        if time.monotonic() >= deadline:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return StageCheck(
        answers=answers,
        is_stopped=was_stopped and not answers and is_stopped(worker.pid),
        has_progress=has_progress,
        busy_seconds=busy_seconds,
        sending_seconds=0.0 if stats is None else stats.sending_seconds,
    )
