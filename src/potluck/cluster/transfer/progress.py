"""The progress of one job: bytes, their sources, the rate, and the time left."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

from potluck.cluster.transfer.demand import Demand
from potluck.cluster.transfer.messages import Progress

_RATE_SECONDS = 5.0
"""The period over which the rate is measured."""


class JobProgress:
    """For use with the board's lock held."""

    def __init__(self) -> None:
        self._past: Counter[str] = Counter()
        self._samples: deque[tuple[float, int]] = deque()
        self._reported: tuple[int, int, bool] | None = None

    def keep(self, demand: Demand) -> None:
        """Keep counting what arrived for a reader that is gone."""
        self._past += demand.by_label

    def report(self, name: str, demands: Sequence[Demand], now: float) -> Progress | None:
        """Return the report on the job ``name``; None if nothing changed."""
        if not demands and not self._past:
            return None
        past = self._past.total()
        done = past + sum(each.done_bytes for each in demands)
        total = past + sum(each.total_bytes for each in demands)
        self._samples.append((now, done))
        while len(self._samples) > 1 and self._samples[0][0] < now - _RATE_SECONDS:
            self._samples.popleft()
        first_at, first_done = self._samples[0]
        rate = max(0.0, (done - first_done) / (now - first_at)) if now > first_at else 0.0
        if self._reported == (done, total, rate == 0):
            return None
        self._reported = (done, total, rate == 0)
        by_label = sum((each.by_label for each in demands), self._past)
        left = max(0, total - done) / rate if rate > 0 else None
        return Progress(name, done, total, dict(by_label), rate, left)
