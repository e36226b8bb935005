"""How many times longer a stage's recent steps take than comparable earlier steps.

Pure: callers provide the time. A machine that throttles, swaps or shares its cores with a new
process still computes, so nothing fails; it slows its whole deployment down. A stage is compared
only with itself, never with others: with steps of about as many tokens at about the same depth in
their sequences, in the last hours.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from potluck.cluster.steps import StepKind, kind_of
from potluck.types.step import Step

SAMPLE_SECONDS = 0.05
"""At most one step is sampled in this time, so that short ones only cost a comparison."""

BLOCK_SECONDS = 10.0
"""The history has one median for each period of this length in which a kind of step was sampled."""

_NUM_BLOCKS = 360
"""An hour of steady use. A quarter of it determines the usual pace, so that a machine that stays
slow counts as slow for three quarters of an hour, and single events do not matter."""

_LEAST_BLOCKS = 2
_LEAST_SAMPLES = 8
"""The minimum history of a kind of step: the first steps touch cold memory."""

_NUM_RECENT = 16
_FORGET_SECONDS = 60.0
"""After this long without steps, the current speed of the stage is unknown."""

_MAX_BLOCK_SAMPLES = 64


@dataclass(slots=True)
class _Block:
    started: float
    samples: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _History:
    """The history of one kind of step."""

    block: _Block
    medians: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_BLOCKS))
    usual_seconds: float | None = None

    def take(self, seconds: float, at: float) -> None:
        block = self.block
        is_full = at - block.started >= BLOCK_SECONDS and len(block.samples) >= _LEAST_SAMPLES
        if is_full:
            self.medians.append(statistics.median(block.samples))
            if len(self.medians) >= _LEAST_BLOCKS:
                ordered = sorted(self.medians)
                self.usual_seconds = ordered[(len(ordered) - 1) // 4]
            self.block = block = _Block(at)
        if len(block.samples) < _MAX_BLOCK_SAMPLES:
            block.samples.append(seconds)


class Pace:
    """The history of one stage. ``record`` is for its compute thread, ``slowdown`` for any."""

    def __init__(self) -> None:
        self._histories: dict[StepKind, _History] = {}
        self._next_at = 0.0
        self._latest_at = 0.0
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)

    def record(self, step: Step, seconds: float, *, at: float) -> None:
        """Record a step that took ``seconds`` and ended at ``at``."""
        if at < self._next_at:
            return
        self._next_at = at + SAMPLE_SECONDS
        kind = kind_of(step)
        history = self._histories.get(kind)
        if history is None:
            history = self._histories[kind] = _History(_Block(at))
        if history.usual_seconds is not None:
            if at - self._latest_at > _FORGET_SECONDS:
                self._recent.clear()
            self._recent.append(seconds / history.usual_seconds)
            self._latest_at = at
        history.take(seconds, at)

    def slowdown(self, now: float) -> float | None:
        """Return the slowdown, about 1 for a stage as fast as before; None while too little is
        known.
        """
        recent = tuple(self._recent)
        if len(recent) < _NUM_RECENT or now - self._latest_at > _FORGET_SECONDS:
            return None
        return statistics.median(recent)
