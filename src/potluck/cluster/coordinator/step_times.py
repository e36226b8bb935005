"""How long steps through all stages took lately, and after how long the next one is overdue.

Pure: callers have the clock. A step that is overdue is not lost. It leads to a question to the
nodes of its stages (``coordinator.overdue``), which know whether their workers make progress; so a
deadline that is too early costs a few messages, and one that is too late delays a recovery.

Steps are alike when they are of one kind (``steps.kind_of``).
"""

from __future__ import annotations

import statistics
from collections import deque

from potluck.cluster.steps import StepKind, kind_of
from potluck.types.step import Step

FLOOR_SECONDS = 1.0
"""No step is overdue sooner. With ``TIMES``, steps of less than a quarter of a second all have this
deadline, and nothing need be known of them."""

TIMES = 4.0
"""Of what half of such steps took lately. One kind spans a factor of two in tokens and in depth,
and a pipeline that runs empty takes as many times longer for a step as it has stages in use."""

CEILING_SECONDS = 15.0
"""A step is asked after by then whatever others took, so that a frozen worker is found within this
time even among steps that take minutes."""

LIMIT_TIMES = 20.0
"""Of what such steps took, for one of which all stages say that they make progress: as many hogs
beside a worker on its cores slow it down as much."""

_FAST_SECONDS = FLOOR_SECONDS / TIMES
_NUM_KEPT = 16
"""Steps of a kind, of which the median counts: a slow one among them changes nothing."""
_LEAST_KEPT = 8
"""That make a history. The first is always slow, as fast ones before it were not noted."""


class StepTimes:
    """What steps took. Mutable, for one thread.

    ``step_seconds`` is the least limit for steps whose stages make progress, and the limit where
    there is no history. Fast steps are noted only beside slow ones of the same kind: while all are
    fast, noting one costs a comparison.
    """

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._lately: dict[StepKind, deque[float]] = {}

    def took(self, step: Step, seconds: float) -> None:
        """A step has come back, so long after it was waited for."""
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
        """After how long to ask after a step."""
        typical = self._typical_seconds(step)
        return min(self._step_seconds, max(FLOOR_SECONDS, min(TIMES * typical, CEILING_SECONDS)))

    def limit_seconds(self, step: Step) -> float:
        """After how long a step is lost though its stages seem to make progress."""
        return max(self._step_seconds, LIMIT_TIMES * self._typical_seconds(step))

    def _typical_seconds(self, step: Step) -> float:
        """Of a kind without history 0: its steps are asked after early."""
        lately = self._lately.get(kind_of(step))
        return 0.0 if lately is None or len(lately) < _LEAST_KEPT else statistics.median(lately)
