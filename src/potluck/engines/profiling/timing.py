"""Measure the time of steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potluck.types.engine import Engine
    from potluck.types.step import Step


class Stopwatch:
    """Measures the time of work without throttling: time added by a control group's quota is
    excluded if ``num_threads`` of this process compute, and not another device.

    Otherwise, the rest of a quota's period, for which a group is paused when it has used its quota,
    would be included in rounds that are longer than the quota allows at a time, and only in these.
    ``num_throttled`` counts how often this process's groups were paused (``Throttling.count``).
    """

    def __init__(
        self, num_threads: int | None = None, num_throttled: Callable[[], int] = int
    ) -> None:
        self._num_threads = num_threads
        self._num_throttled = num_throttled

    def seconds(self, work: Callable[[], None]) -> float:
        """Run ``work``, and return how long it took."""
        if self._num_threads is None:
            return _seconds(work)
        before = self._num_throttled()
        computed = time.process_time()
        seconds = _seconds(work)
        computed = time.process_time() - computed
        if self._num_throttled() == before:
            return seconds
        return min(seconds, computed / self._num_threads)


def _seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def best_seconds(
    engines: Sequence[Engine],
    step: Step,
    width: int,
    turn_seconds: float,
    stopwatch: Stopwatch,
) -> float:
    """Return the fastest of the rounds that fit in a turn; there is at least one.

    A round runs ``step`` in each of ``engines``, with random hidden states ``[tokens, width]``.
    """
    random = np.random.default_rng(0)
    hidden = random.standard_normal((step.num_tokens, width), dtype=np.float32)

    def compute() -> None:
        for engine in engines:
            engine.step(step, hidden)

    best = math.inf
    end = time.perf_counter() + turn_seconds
    while True:
        best = min(best, stopwatch.seconds(compute))
        if time.perf_counter() >= end:
            return best
