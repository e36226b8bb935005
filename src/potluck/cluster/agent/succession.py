"""When it is a node's turn to take over a deployment whose coordinator is lost. Pure.

Nobody takes over while any node that can be reached still sees the coordinator: then it is a link
that is cut, not the coordinator that is lost. Otherwise the candidates try in the order of their
ids. Each waits a while for those before it, and not at all for those that cannot, or do not answer.
Claims of epochs decide if two try at once, so waiting only spares the loser's work.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from potluck.cluster.calls import Outlook, Standing
from potluck.types.cluster import NodeId

TURN_SECONDS = 1.0
"""For each candidate before this one: a plan and a claim on a small board."""

AT_WORK_SECONDS = 20.0
"""For one that says that it is taking over: longer than a side without most of the holders waits
(``machine.MINORITY_SECONDS``), or nobody would wait for it there."""


class Decision(enum.Enum):
    """What to do now about a coordinator that this node does not see."""

    TAKE_OVER = "take over"
    WAIT = "wait"
    NOT_LOST = "not lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """Since when none of the nodes that answered saw the coordinator; None if one does.

    Times are the caller's, in seconds of a monotonic clock.
    """

    since: float | None = None

    def decide(
        self, own: NodeId, outlooks: Mapping[NodeId, Outlook], now: float
    ) -> tuple[Vacancy, Decision]:
        """Return what to do after other nodes have answered with ``outlooks``."""
        if any(each.sees_coordinator for each in outlooks.values()):
            return Vacancy(), Decision.NOT_LOST
        since = now if self.since is None else self.since
        waited = now - since
        before = [
            node
            for node, each in outlooks.items()
            if node < own and each.standing is Standing.CANDIDATE
        ]
        is_being_taken = any(each.standing is Standing.AT_WORK for each in outlooks.values())
        patience = len(before) * TURN_SECONDS
        if is_being_taken:
            patience = max(patience, AT_WORK_SECONDS)
        decision = Decision.TAKE_OVER if waited >= patience else Decision.WAIT
        return Vacancy(since=since), decision
