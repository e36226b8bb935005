"""The node's units that are out of use, as changed by stages and self-tests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from potluck.cluster.agent.unit_health import UnitFailure, UnitHealth
from potluck.types.cluster import UnitId
from potluck.types.node import CPU_UNIT

_log = logging.getLogger(__name__)


Changed = Callable[[UnitId, str], None]
"""Gets a unit that is now out, with the reason, or one that is used again, with an empty one."""


def _ignore(unit_id: UnitId, reason: str) -> None:
    """Do nothing."""


class UnitOutages:
    """The units that are out. For use in the agent's event loop.

    ``health`` is replaced after every test of a unit; ``news`` is set when there is something to
    handle. ``changed`` is called for every unit that goes out or comes back.
    """

    def __init__(self, changed: Changed = _ignore) -> None:
        self.news = asyncio.Event()
        self._changed = changed
        self._health = UnitHealth()

    @property
    def health(self) -> UnitHealth:
        """Return the units that are out, and when units failed."""
        return self._health

    @health.setter
    def health(self, health: UnitHealth) -> None:
        before, after = self._health.reasons, health.reasons
        self._health = health
        for unit_id in after.keys() - before.keys():
            self._changed(unit_id, after[unit_id])
        for unit_id in before.keys() - after.keys():
            self._changed(unit_id, "")

    def reasons(self) -> Mapping[str, str]:
        """Return why units are out, by unit id."""
        return {str(unit_id): reason for unit_id, reason in self.health.reasons.items()}

    def failed(self, unit_id: UnitId, failure: UnitFailure) -> None:
        """Take a failed unit out of use, except for the CPU with the native backend."""
        if unit_id == CPU_UNIT or unit_id in self.health.outages:
            return
        self.health = self.health.failed(unit_id, failure, time.monotonic())
        _log.warning("%s is no longer used: %s", unit_id, self.reasons()[unit_id])
        self.news.set()
