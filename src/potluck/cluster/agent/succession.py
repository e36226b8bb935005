"""Decides when a node may take over a deployment whose coordinator is lost. Pure.

No node takes over while any reachable node still sees the coordinator: then a link is cut, and the
coordinator is not lost. Otherwise the candidates try in the order of their ids. Each waits a while
for those before it, but not for those that are unable or do not answer. If two try at once, claims
of epochs decide, so waiting only avoids wasted work.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from potluck.cluster.calls import CoordinatorView, TakeoverReadiness
from potluck.types.cluster import NodeId

TURN_SECONDS = 1.0
"""The wait per candidate before this one: the time for a plan and a claim on a small board."""

AT_WORK_SECONDS = 20.0
"""The wait for a candidate that says that it is taking over: longer than a side without most of the
holders waits (``machine.MINORITY_SECONDS``), or nobody would wait for it there."""


class Decision(enum.Enum):
    """What to do about a coordinator that this node does not see."""

    TAKE_OVER = "take over"
    WAIT = "wait"
    NOT_LOST = "not lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """Since when none of the nodes that answered has seen the coordinator; None if one does.

    Times are the caller's, in seconds of a monotonic clock.
    """

    since: float | None = None

    def decide(
        self, own: NodeId, views: Mapping[NodeId, CoordinatorView], now: float
    ) -> tuple[Vacancy, Decision]:
        """Return what to do, given the answers (``views``) of other nodes."""
        if any(each.sees_coordinator for each in views.values()):
            return Vacancy(), Decision.NOT_LOST
        since = now if self.since is None else self.since
        waited = now - since
        before = [
            node
            for node, each in views.items()
            if node < own and each.readiness is TakeoverReadiness.CANDIDATE
        ]
        is_being_taken = any(each.readiness is TakeoverReadiness.AT_WORK for each in views.values())
        patience = len(before) * TURN_SECONDS
        if is_being_taken:
            patience = max(patience, AT_WORK_SECONDS)
        decision = Decision.TAKE_OVER if waited >= patience else Decision.WAIT
        return Vacancy(since=since), decision
