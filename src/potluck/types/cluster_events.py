"""Events in a cluster, as observed by one node."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId


class EventKind(enum.Enum):
    """The kind of an event."""

    JOINED = "joined"
    LEFT = "left"
    """The node announced that it is leaving."""
    LOST = "lost"
    REMOVED = "removed"
    DEPLOYING = "deploying"
    READY = "ready"
    FAILED = "failed"
    """A deployment was abandoned before it was ever ready."""
    DEGRADED = "degraded"
    RECOVERED = "recovered"
    REBALANCED = "rebalanced"
    UNDEPLOYED = "undeployed"
    UNIT_OUT = "unit_out"
    UNIT_BACK = "unit_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContent:
    """An event that does not have a number yet. ``message`` is one sentence for users.

    ``details`` has JSON types only. Its keys depend on the kind; see docs/reference/http-api.md.
    """

    kind: EventKind
    message: str
    model_id: str | None = None
    node_id: NodeId | None = None
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterEvent:
    """A logged event. Ids increase across restarts of the agent.

    ``time`` is in seconds since 1970.
    """

    event_id: int
    time: float
    what: EventContent
