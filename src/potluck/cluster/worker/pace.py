"""How many times longer a stage's steps take lately than such steps used to take there.

Pure: callers have the clock. A machine that throttles, swaps or shares its cores with something new
still computes, so nothing fails; it slows its whole deployment down. A stage is compared with
itself, never with others: steps of about as many tokens that reach about as far into their
sequences, now and in the last hours.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from potluck.cluster.steps import StepKind, kind_of
from potluck.types.step import Step

SAMPLE_SECONDS = 0.05
"""At most one step in this time is looked at, so that short ones cost a comparison."""

BLOCK_SECONDS = 10.0
"""The history is one median for every so many seconds in which a kind of step was looked at."""

_NUM_BLOCKS = 360
"""An hour of steady use. A quarter of it sets the usual pace, so that a machine that stays slow
counts as slow for three quarters of an hour, and what happens once does not matter."""

_LEAST_BLOCKS = 2
_LEAST_SAMPLES = 8
"""A kind of step has a history from then on: the first steps touch cold memory."""

_NUM_RECENT = 16
_FORGET_SECONDS = 60.0
"""After so long without steps nothing is known of how fast the stage is now."""

_MAX_BLOCK_SAMPLES = 64


@dataclass(slots=True)
class _Block:
    started: float
    samples: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _History:
    """Of one kind of step."""

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
    """The history of one stage. ``took`` is for its compute thread, ``slowdown`` for any."""

    def __init__(self) -> None:
        self._histories: dict[StepKind, _History] = {}
        self._next_at = 0.0
        self._latest_at = 0.0
        self._recent: deque[float] = deque(maxlen=_NUM_RECENT)

    def took(self, step: Step, seconds: float, *, at: float) -> None:
        """A step was computed in ``seconds``, until ``at``."""
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
        """About 1 for a stage that is as fast as ever; None while too little is known."""
        recent = tuple(self._recent)
        if len(recent) < _NUM_RECENT or now - self._latest_at > _FORGET_SECONDS:
            return None
        return statistics.median(recent)
