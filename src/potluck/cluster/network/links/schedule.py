"""Decides which link is measured next, and limits the cost.

Pure: clock and random generator are the caller's.

One measurement serves both nodes of a link. So that they do not start at the same time, the two
node ids determine which one begins; the other begins if it still has no figures some time later,
because the first could not reach it or was busy. Joining nodes are measured in random order, at
random times.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from potluck.types.cluster import NodeId

REFRESH_SECONDS = 600.0
"""The interval between measurements of a link without doubts."""

_FIRST_SECONDS = (0.05, 0.5)
"""The delay after a node has joined, on the node that begins."""

_SECOND_SECONDS = (2.0, 3.0)
"""The delay on the other node."""

_OTHERS_TURN_SECONDS = 60.0
"""How much later the other node refreshes the figures."""

_DOUBT_SECONDS = 20.0
"""The least time between a measurement and one caused by a doubt; each doubt doubles it."""

_BUSY_SECONDS = (0.3, 1.5)
"""The delay before retrying a node that was being measured by another."""

_FIRST_PAUSE_SECONDS = 15.0
_LONGEST_PAUSE_SECONDS = 1800.0
"""The delay after a failure; each further one doubles it."""

SHARE = 0.01

WINDOW_SECONDS = 60.0

CAPACITY_SECONDS = SHARE * WINDOW_SECONDS / 2
"""0.3 s: about 50 measurements of 6 ms each on Gigabit Ethernet."""

_REFILL_PER_SECOND = SHARE / 2

LEAST_SECONDS = 0.05
"""The least budget to begin a measurement. It allows 50 KB at 1 MB/s, or 600 KB at 12 MB/s."""


@dataclass(slots=True, kw_only=True)
class _Due:
    at: float
    num_failures: int = 0
    measured_at: float | None = None
    num_doubts: int = 0


class LinkSchedule:
    """The schedule of one node's measurements. For one thread."""

    def __init__(self, own_node_id: NodeId, draws: random.Random) -> None:
        self._own_node_id = own_node_id
        self._draws = draws
        self._due: dict[NodeId, _Due] = {}

    def joined(self, node_id: NodeId, now: float, *, measured_at: float | None) -> None:
        """Schedule a node soon, or for its refresh if it was ``measured_at`` before it left."""
        self._due[node_id] = _Due(at=now)
        if measured_at is not None and now - measured_at < REFRESH_SECONDS:
            self.measured(node_id, measured_at)
            return
        spread = _FIRST_SECONDS if self._begins(node_id) else _SECOND_SECONDS
        self._due[node_id].at = now + self._draws.uniform(*spread)

    def left(self, node_id: NodeId) -> None:
        """Stop measuring a node."""
        self._due.pop(node_id, None)

    def measured(self, node_id: NodeId, at: float, *, has_changed: bool = False) -> None:
        """Record a measurement, whichever node began it, and whether it confirmed a doubt."""
        if (due := self._due.get(node_id)) is not None:
            pause = REFRESH_SECONDS * self._draws.uniform(0.9, 1.1)
            due.at = at + pause + (0.0 if self._begins(node_id) else _OTHERS_TURN_SECONDS)
            due.num_failures = 0
            due.measured_at = at
            due.num_doubts = 0 if has_changed else due.num_doubts

    def doubted(self, node_id: NodeId, now: float) -> None:
        """Measure a node again soon, but less and less often if the doubts continue."""
        due = self._due.get(node_id)
        if due is None or due.measured_at is None or due.at <= now:
            return
        since = now - due.measured_at
        if since >= REFRESH_SECONDS / 2:
            due.num_doubts = 0
        if since >= _DOUBT_SECONDS * 2**due.num_doubts:
            due.num_doubts += 1
            due.at = now

    def was_busy(self, node_id: NodeId, now: float, *, wait_seconds: float = 0.0) -> None:
        """Retry a node shortly, or when its budget allows it."""
        if (due := self._due.get(node_id)) is not None:
            due.at = now + wait_seconds + self._draws.uniform(*_BUSY_SECONDS)

    def failed(self, node_id: NodeId, now: float) -> None:
        """Retry a node after a pause."""
        if (due := self._due.get(node_id)) is not None:
            pause = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2**due.num_failures)
            due.num_failures = min(due.num_failures + 1, 16)
            due.at = now + pause * self._draws.uniform(0.8, 1.2)

    def is_new(self, node_id: NodeId) -> bool:
        """Return whether a node has joined and the first attempt to measure it is not finished."""
        due = self._due.get(node_id)
        return due is not None and due.num_failures == 0

    def next(self) -> tuple[NodeId, float] | None:
        """Return the next node to measure and when; None if there are none."""
        if not self._due:
            return None
        node_id = min(self._due, key=lambda each: self._due[each].at)
        return node_id, self._due[node_id].at

    def _begins(self, node_id: NodeId) -> bool:
        """Return whether this node begins: true for half of its peers, evenly spread."""
        is_odd = (int(self._own_node_id, 16) ^ int(node_id, 16)).bit_count() % 2 == 1
        return (self._own_node_id < node_id) == is_odd


class LinkBudget:
    """Tracks the budget. For one thread. Times are of any monotonic clock.

    The budget for measurements is 1 % of any minute of a node's network time. A measurement costs
    the time that its bytes take on the wire, in the direction that has more of them, or the time
    that it took to compute them if that is longer. Half of a minute's budget can be saved up, so
    that a joining node measures its links within seconds; the other half is refilled over time. So
    no minute ever contains more than the saved half and the half that was refilled during it.
    """

    def __init__(self, now: float) -> None:
        self._available = CAPACITY_SECONDS
        self._at = now

    def available(self, now: float) -> float:
        """Return how many seconds may be spent now; zero or negative if the budget is overdrawn."""
        self._available = min(
            CAPACITY_SECONDS, self._available + (now - self._at) * _REFILL_PER_SECOND
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
        return max(0.0, missing / _REFILL_PER_SECOND)
