"""Units that a deployment temporarily plans without because their workers stalled.

The node itself may not know: its CPU is never marked out there, as it is the fallback. Pure:
callers have the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field

from potluck.errors import EngineError
from potluck.types.cluster import NodeId, UnitId

PAUSE_SECONDS = (60.0, 300.0, 1800.0)
"""The time before such a unit is used again, by how often it has stalled: the same as for units
that fail (``agent.unit_health``)."""

NodeUnitId = tuple[NodeId, UnitId]


class StageStalledError(EngineError):
    """A stage made no progress while loading or in a step: its unit is left out of the next
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
class StalledUnits:
    """Which units stalled, and until when each is left out. Times are in seconds."""

    absences: Mapping[NodeUnitId, _Absence] = field(default_factory=dict)

    def stalled(self, error: StageStalledError, now: float) -> StalledUnits:
        """Return the state after another stall."""
        unit = (error.node_id, error.unit_id)
        before = self.absences.get(unit)
        num_stalls = 1 if before is None else before.num_stalls + 1
        pause = PAUSE_SECONDS[min(num_stalls, len(PAUSE_SECONDS)) - 1]
        absence = _Absence(reason=error.message, until=now + pause, num_stalls=num_stalls)
        return dataclasses.replace(self, absences={**self.absences, unit: absence})

    def reasons(self, now: float, *, is_first: bool) -> dict[NodeUnitId, str]:
        """Return the reason for each unit that is left out.

        While a model is deployed for the first time none is used again, so that every attempt has
        fewer units and the attempts come to an end.
        """
        return {
            unit: absence.reason
            for unit, absence in self.absences.items()
            if is_first or now < absence.until
        }
