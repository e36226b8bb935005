"""The threads that compute."""

from __future__ import annotations

import logging

from potluck.engines.native.program import core_errors
from potluck.host.cores import CoreWatch
from potluck.kernels import runner
from potluck.types.quantities import format_count

_log = logging.getLogger(__name__)


class ThreadPool(runner.ThreadPool):
    """A thread pool that the stages of a process may share by taking turns.

    No more threads compute at once than there are usable cores, and their number may change while
    the process runs: with a CPU quota of one core, two threads are slower than one, because both
    are stopped for the rest of each period. Results do not depend on the number. Created by
    ``make_pool``.
    """

    def __init__(self, num_threads: int, cores: CoreWatch) -> None:
        super().__init__(num_threads)
        self._cores = cores
        self.num_active = cores.latest().num_cores

    def follow_cores(self) -> None:
        """Let as many threads compute as there are usable cores now; called before every step."""
        cores = self._cores.latest()
        num_active = min(cores.num_cores, self.num_threads)
        if num_active != self.num_active:
            self.num_active = num_active
            threads = format_count(num_active, "thread")
            _log.info("computing on %s from now on (usable cores: %s)", threads, cores.reason)


def make_pool(num_threads: int | None = None, cores: CoreWatch | None = None) -> ThreadPool:
    """Return a pool of ``num_threads``, including the caller's; None means one per usable core.

    ``cores`` tells the usable cores; by default they are those of this process. Raises
    ``EngineError`` if the threads cannot be started.
    """
    cores = CoreWatch() if cores is None else cores
    with core_errors("use a smaller number of threads, at least 1"):
        return ThreadPool(cores.latest().num_cores if num_threads is None else num_threads, cores)
