"""Units that a deployment plans without for a while, as their workers stalled.

The node itself may not know: its CPU is never out there, as it has nothing to fall back to. Pure:
callers have the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.errors import EngineError
from potluck.types.cluster import NodeId, UnitId

PAUSE_SECONDS = (60.0, 300.0, 1800.0)
"""Before such a unit is tried again, by how often it has stalled: as for units that fail
(``agent.unit_health``)."""

NodeUnitId = tuple[NodeId, UnitId]


class StageStalledError(EngineError):
    """A stage got no further, while it was loaded or in a step: its unit is left out of the next
    plan.
    """

    def __init__(self, node_id: NodeId, unit_id: UnitId, message: str) -> None:
        super().__init__(message)
        self.node_id = node_id
        self.unit_id = unit_id


@dataclass(frozen=True, slots=True, kw_only=True)
class _Absence:
    reason: str
    until: float
    num_stalls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Which units stalled, and until when each is left out. Times are in seconds."""

    absences: Mapping[NodeUnitId, _Absence] = field(default_factory=dict)

    def stalled(self, error: StageStalledError, now: float) -> LeftOut:
        """After another stall."""
        unit = (error.node_id, error.unit_id)
        before = self.absences.get(unit)
        num_stalls = 1 if before is None else before.num_stalls + 1
        pause = PAUSE_SECONDS[min(num_stalls, len(PAUSE_SECONDS)) - 1]
        absence = _Absence(reason=error.message, until=now + pause, num_stalls=num_stalls)
        return dataclasses.replace(self, absences={**self.absences, unit: absence})

    def reasons(self, now: float, *, is_first: bool) -> dict[NodeUnitId, str]:
        """Why units are left out, of those that are. While a model is deployed for the first time
        none is tried again, so that every try is made with fewer and there is a last one.
        """
        return {
            unit: absence.reason
            for unit, absence in self.absences.items()
            if is_first or now < absence.until
        }
