"""How long steps take."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from potluck.types.engine import Engine
    from potluck.types.step import Step


def best_seconds(engines: Sequence[Engine], step: Step, width: int, turn_seconds: float) -> float:
    """The quickest of the rounds that fit in a turn, of which there is one at least.

    A round is ``step`` in each of ``engines``, with random hidden states ``[tokens, width]``.
    """
    random = np.random.default_rng(0)
    hidden = random.standard_normal((step.num_tokens, width), dtype=np.float32)
    best = math.inf
    end = time.perf_counter() + turn_seconds
    while True:
        started = time.perf_counter()
        for engine in engines:
            engine.step(step, hidden)
        now = time.perf_counter()
        best = min(best, now - started)
        if now >= end:
            return best
