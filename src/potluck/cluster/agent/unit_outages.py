"""Which of a node's units are out at this moment: what stages report, and self-tests change."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from potluck.cluster.agent.unit_health import UnitFailure, UnitHealth
from potluck.types.cluster import UnitId
from potluck.types.node import CPU_UNIT

_log = logging.getLogger(__name__)


class UnitOutages:
    """The units that are out. For use in the agent's loop.

    ``health`` is replaced by whoever tests the units; ``news`` is set when there is something to
    look into.
    """

    def __init__(self) -> None:
        self.health = UnitHealth()
        self.news = asyncio.Event()

    def reasons(self) -> Mapping[str, str]:
        """Return why units are out, by the ids of those that are."""
        return {str(unit_id): reason for unit_id, reason in self.health.reasons.items()}

    def failed(self, unit_id: UnitId, failure: UnitFailure) -> None:
        """Take a unit out that failed. The CPU with the native backend always stays."""
        if unit_id == CPU_UNIT or unit_id in self.health.outages:
            return
        self.health = self.health.failed(unit_id, failure, time.monotonic())
        _log.warning("%s is not used any more: %s", unit_id, self.reasons()[unit_id])
        self.news.set()
