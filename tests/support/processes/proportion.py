"""How much processor time work takes, whatever else runs on the machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable


def least_busy_seconds(work: Callable[[], object], attempts: int = 5) -> float:
    """Return the processor time of this thread in ``work``, at the quickest attempt."""
    seconds = []
    for _ in range(attempts):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def assert_in_proportion(prepared: Callable[[int], Callable[[], object]], amount: int) -> None:
    """Ten times ``amount`` takes about ten times as long, and not a hundred times.

    ``prepared`` makes the work for an amount. The least of several times counts, as others use the
    machine, and without the garbage collector, which looks at all that other tests have left.
    """

    def seconds(count: int) -> float:
        times = []
        for _ in range(3):
            work = prepared(count)
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        return min(times)

    gc.collect()
    gc.disable()
    try:
        assert seconds(10 * amount) < 40 * max(seconds(amount), 1e-3)
    finally:
        gc.enable()
