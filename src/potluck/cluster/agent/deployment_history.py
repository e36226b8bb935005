"""Derives events from the successive records of deployments. Pure.

Every node receives the records of every deployment, so it needs to ask nobody.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from potluck.types.cluster import DeploymentId, NodeId
from potluck.types.cluster_events import EventContent, EventKind
from potluck.types.deployment import DeploymentRecord, DeploymentState, StageRecord
from potluck.types.quantities import format_count

UNDEPLOYED = "undeployed"
"""The reason in the record of a deployment that a user removed."""

_NODE = re.compile(r"\bnode ([0-9a-f]{16})\b")

Name = Callable[[NodeId], str]
"""Returns the name of a node for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The last record of a deployment, and the last one that served, if any."""

    latest: DeploymentRecord
    served: DeploymentRecord | None = None
    is_degraded: bool = False


class DeploymentHistory:
    """Derives events by comparing each record with earlier ones. ``name`` names nodes."""

    def __init__(self, name: Name) -> None:
        self._name = name
        self._known: dict[DeploymentId, _Known] = {}

    def record_changed(self, record: DeploymentRecord) -> tuple[EventContent, ...]:
        """Return the events that the next record of a deployment implies.

        A node that joins receives records older than its membership: earlier events are not
        reported.
        """
        known = self._known.get(record.deployment)
        if record.is_removed:
            if self._known.pop(record.deployment, None) is None or known is None:
                return ()
            return (_removed(self._named(record), known),)
        if known is None:
            is_serving = record.is_ready
            self._known[record.deployment] = _Known(
                latest=record,
                served=record if is_serving or record.status.num_recoveries else None,
                is_degraded=record.status.state is DeploymentState.DEGRADED,
            )
            return () if is_serving else (_deploying(self._named(record)),)
        self._known[record.deployment] = _followed(known, record)
        match record.status.state:
            case DeploymentState.READY:
                return tuple(self._ready(known, record))
            case DeploymentState.DEGRADED if not known.is_degraded and known.served is not None:
                return (_degraded(self._named(record)),)
            case _:
                return ()

    def _named(self, record: DeploymentRecord) -> DeploymentRecord:
        """Return ``record`` with names instead of node ids in its reason."""
        reason = _NODE.sub(lambda found: self._name(NodeId(found[1])), record.status.reason)
        return record.with_status(reason=reason)

    def _ready(self, known: _Known, record: DeploymentRecord) -> Iterator[EventContent]:
        served = known.served
        if served is None:
            yield _now_ready(record)
            return
        if served.epoch == record.epoch and known.latest.is_ready:
            return
        moved = [
            {"stage": index, "from": left, "to": after.node_id}
            for index, left, after in _moves(served, record)
        ]
        names = _names_of(moved, self._name)
        status, before = record.status, served.status
        if status.num_recoveries > before.num_recoveries:
            seconds = status.recovery_seconds
            paused = "" if seconds is None else f" after a pause of {seconds:.1f} s"
            yield EventContent(
                kind=EventKind.RECOVERED,
                message=f"{record.model_id} serves again{paused}{names}.",
                model_id=record.model_id,
                details={"paused_seconds": seconds, "moved": moved},
            )
        elif moved or status.num_moves > before.num_moves:
            gain = status.last_gain if status.num_moves > before.num_moves else None
            why = "to other units"
            if gain is not None:
                pace = "faster" if gain >= 0 else "slower"
                why = f"to a plan that is predicted to be {abs(gain):.0%} {pace}"
            yield EventContent(
                kind=EventKind.REBALANCED,
                message=f"{record.model_id} moved {why}{names}.",
                model_id=record.model_id,
                details={"moved": moved, "gain": gain},
            )


def _followed(known: _Known, record: DeploymentRecord) -> _Known:
    is_serving = record.is_ready
    is_degraded = record.status.state is DeploymentState.DEGRADED
    return replace(
        known,
        latest=record,
        served=record if is_serving else known.served,
        # Between a loss and the next serving plan it is degraded, then loading, and so on.
        is_degraded=not is_serving and (is_degraded or known.is_degraded),
    )


def _deploying(record: DeploymentRecord) -> EventContent:
    kind = EventKind.DEPLOYING
    what = f"{record.model_id} is being deployed"
    if record.status.state is DeploymentState.DEGRADED:
        kind, what = EventKind.DEGRADED, f"{record.model_id} is not serving: {record.status.reason}"
    return EventContent(
        kind=kind,
        message=f"{what.removesuffix('.')}.",
        model_id=record.model_id,
        node_id=record.epoch.coordinator,
        details={},
    )


def _now_ready(record: DeploymentRecord) -> EventContent:
    stages = format_count(len(record.stages), "stage")
    return EventContent(
        kind=EventKind.READY,
        message=f"{record.model_id} is ready on {stages}.",
        model_id=record.model_id,
        details={
            "stages": [
                {
                    "stage": index,
                    "node_id": stage.node_id,
                    "unit_id": stage.unit_id,
                    "start_layer": stage.start_layer,
                    "end_layer": stage.end_layer,
                }
                for index, stage in enumerate(record.stages)
            ]
        },
    )


def _degraded(record: DeploymentRecord) -> EventContent:
    return EventContent(
        kind=EventKind.DEGRADED,
        message=f"{record.model_id} is not serving: {record.status.reason.removesuffix('.')}.",
        model_id=record.model_id,
        details={"reason": record.status.reason},
    )


def _removed(record: DeploymentRecord, known: _Known) -> EventContent:
    reason = record.status.reason
    if known.served is None and reason != UNDEPLOYED:
        return EventContent(
            kind=EventKind.FAILED,
            message=f"{record.model_id} could not be deployed: {reason.removesuffix('.')}.",
            model_id=record.model_id,
            details={"reason": reason},
        )
    because = "" if reason in ("", UNDEPLOYED) else f": {reason.removesuffix('.')}"
    return EventContent(
        kind=EventKind.UNDEPLOYED,
        message=f"{record.model_id} was undeployed{because}.",
        model_id=record.model_id,
        details={"reason": reason},
    )


def _moves(
    before: DeploymentRecord, after: DeploymentRecord
) -> Iterator[tuple[int, NodeId | None, StageRecord]]:
    """Yield the stages on another unit or with other layers, and who had their first layer before.

    A member of a group is compared with the member of the same number.
    """
    old = {
        (layer, 0 if stage.part is None else stage.part.member): stage
        for stage in before.stages
        for layer in range(stage.start_layer, stage.end_layer)
    }
    for index, stage in enumerate(after.stages):
        member = 0 if stage.part is None else stage.part.member
        had = old.get((stage.start_layer, member))
        if had is None:
            yield index, None, stage
        elif stage.place != had.place:
            yield index, had.node_id, stage


def _names_of(moved: Sequence[Mapping[str, object]], name: Name) -> str:
    """Describe where stages moved, for a sentence; empty if none did."""
    nodes = list(dict.fromkeys(NodeId(str(each["to"])) for each in moved))
    if not nodes:
        return ""
    stages = format_count(len(moved), "stage")
    return f"; {stages} changed, now on {', '.join(map(name, nodes[:4]))}" + (
        f" and {len(nodes) - 4} more" if len(nodes) > 4 else ""
    )
