"""How long recent steps through all stages took, and after how long the next one is overdue.

Pure: callers have the clock. A step that is overdue is not lost. The nodes of its stages are then
asked whether their workers make progress (``coordinator.overdue``); a deadline that is too early
costs a few messages, and one that is too late delays a recovery.

Steps are alike when they are of one kind (``steps.kind_of``).
"""

from __future__ import annotations

import statistics
from collections import deque

from potluck.cluster.steps import StepKind, kind_of
from potluck.types.step import Step

FLOOR_SECONDS = 1.0
"""No step is overdue sooner. With ``TIMES``, all steps of less than a quarter of a second have this
deadline, so they need no history."""

TIMES = 4.0
"""A step is overdue after this multiple of the median of such steps. One kind spans a factor of two
in tokens and in depth, and a pipeline that runs empty takes as many times longer for a step as it
has stages in use."""

CEILING_SECONDS = 15.0
"""Every step is overdue by then, whatever others took, so that a frozen worker is found within this
time even among steps that take minutes."""

LIMIT_TIMES = 20.0
"""A step is lost after this multiple of what such steps took even if all stages report progress: as
many competing processes on a worker's cores slow it down as much."""

_FAST_SECONDS = FLOOR_SECONDS / TIMES
_NUM_KEPT = 16
"""The number of steps of a kind that are kept for the median: a slow outlier has no effect."""
_LEAST_KEPT = 8
"""The minimum history. The first is always slow, as fast ones before it were not recorded."""


class StepTimes:
    """The times of recent steps. Mutable, for one thread.

    ``step_seconds`` is the minimum limit for steps whose stages make progress, and the limit if
    there is no history. Fast steps are recorded only if there are slow ones of the same kind: while
    all are fast, recording one costs a comparison.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._lately: dict[StepKind, deque[float]] = {}

    def record(self, step: Step, seconds: float) -> None:
        """Record how long a step took."""
        if seconds < _FAST_SECONDS and not self._lately:
            return
        kind = kind_of(step)
        lately = self._lately.get(kind)
        if lately is None:
            if seconds < _FAST_SECONDS:
                return
            lately = self._lately[kind] = deque(maxlen=_NUM_KEPT)
        lately.append(seconds)
        if len(lately) == _NUM_KEPT and max(lately) < _FAST_SECONDS:
            del self._lately[kind]

    def overdue_seconds(self, step: Step) -> float:
        """Return after how long a step is overdue."""
        typical = self._typical_seconds(step)
        return min(self._step_seconds, max(FLOOR_SECONDS, min(TIMES * typical, CEILING_SECONDS)))

    def limit_seconds(self, step: Step) -> float:
        """Return after how long a step is lost even if its stages seem to make progress."""
        return max(self._step_seconds, LIMIT_TIMES * self._typical_seconds(step))

    def _typical_seconds(self, step: Step) -> float:
        """Return the typical time; 0 for a kind without history, whose steps are overdue early."""
        lately = self._lately.get(kind_of(step))
        return 0.0 if lately is None or len(lately) < _LEAST_KEPT else statistics.median(lately)
