"""Observations of one node: events in the cluster, and statistics of deployed models."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSample:
    """Statistics of one deployed model within one interval; None if nothing was measured.

    ``tokens_per_second`` counts the tokens of all sequences. ``first_token_seconds`` is the mean
    time from arrival at the coordinator to the first token, over the sequences that got it in this
    interval. ``cache_hit_share`` is the fraction of admitted sequences whose prompt was partly in
    the prefix cache, ``draft_acceptance`` the fraction of drafted tokens that were right, and
    ``cache_used_share`` the fraction of cache blocks held by sequences. For each stage,
    ``stage_seconds`` is the mean time of its steps, and ``stage_busy`` the fraction of the interval
    in which it was computing.
    """

    tokens_per_second: float | None = None
    first_token_seconds: float | None = None
    num_running: int = 0
    num_waiting: int = 0
    cache_hit_share: float | None = None
    cache_used_share: float | None = None
    draft_acceptance: float | None = None
    stage_seconds: tuple[float | None, ...] = ()
    stage_busy: tuple[float | None, ...] = ()
