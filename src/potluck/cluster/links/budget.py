"""How long a node may keep its network busy with measurements: 1 % of any minute.

What is spent is the time that the bytes of a measurement take on the wire, in the direction that
has more of them, or the time that it took to compute them if that is longer. Half of the share can
be saved up, so that a node that joins learns of its neighbours within seconds; the other half comes
back over time. So no minute ever contains more than the saved half and the half that came back
during it.
"""

from __future__ import annotations

SHARE = 0.01
WINDOW_SECONDS = 60.0

CAPACITY_SECONDS = SHARE * WINDOW_SECONDS / 2
"""0.3 s: about 50 measurements on Gigabit Ethernet, of 6 ms each."""

REFILL_PER_SECOND = SHARE / 2

LEAST_SECONDS = 0.05
"""A measurement is not begun with less. It allows 50 KB at 1 MB/s, 600 KB at 12 MB/s."""


class LinkBudget:
    """For one thread. Times are of any clock that never goes backwards."""

    def __init__(self, now: float) -> None:
        self._available = CAPACITY_SECONDS
        self._at = now

    def available(self, now: float) -> float:
        """Return how many seconds may be spent now; not above zero if too many were."""
        self._available = min(
            CAPACITY_SECONDS, self._available + (now - self._at) * REFILL_PER_SECOND
        )
        self._at = now
        return self._available

    def spend(self, seconds: float, now: float) -> None:
        """Count what was spent. What exceeds the budget is waited for afterwards."""
        self.available(now)
        self._available -= seconds

    def wait_seconds(self, now: float) -> float:
        """Return how long it takes until another measurement may begin; 0 if it may now."""
        missing = LEAST_SECONDS - self.available(now)
        return max(0.0, missing / REFILL_PER_SECOND)
