"""The budget for measurements: 1 % of any minute of a node's network time.

A measurement costs the time that its bytes take on the wire, in the direction that has more of
them, or the time that it took to compute them if that is longer. Half of a minute's budget can be
saved up, so that a joining node measures its links within seconds; the other half is refilled over
time. So no minute ever contains more than the saved half and the half that was refilled during it.
"""

from __future__ import annotations

SHARE = 0.01
WINDOW_SECONDS = 60.0

CAPACITY_SECONDS = SHARE * WINDOW_SECONDS / 2
"""0.3 s: about 50 measurements of 6 ms each on Gigabit Ethernet."""

REFILL_PER_SECOND = SHARE / 2

LEAST_SECONDS = 0.05
"""The least budget to begin a measurement. It allows 50 KB at 1 MB/s, or 600 KB at 12 MB/s."""


class LinkBudget:
    """Tracks the budget. For one thread. Times are of any monotonic clock."""

    def __init__(self, now: float) -> None:
        self._available = CAPACITY_SECONDS
        self._at = now

    def available(self, now: float) -> float:
        """Return how many seconds may be spent now; zero or negative if the budget is overdrawn."""
        self._available = min(
            CAPACITY_SECONDS, self._available + (now - self._at) * REFILL_PER_SECOND
        )
        self._at = now
        return self._available

    def spend(self, seconds: float, now: float) -> None:
        """Charge ``seconds`` to the budget, which may be overdrawn."""
        self.available(now)
        self._available -= seconds

    def wait_seconds(self, now: float) -> float:
        """Return how long to wait before another measurement may begin; 0 if it may now."""
        missing = LEAST_SECONDS - self.available(now)
        return max(0.0, missing / REFILL_PER_SECOND)
