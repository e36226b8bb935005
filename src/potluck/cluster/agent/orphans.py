"""Limits how long a node holds stages that no coordinator asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from potluck.types.cluster import DeploymentId, NodeId

ORPHAN_SECONDS = 600.0
"""Ten minutes: longer than it takes to restart a coordinator's machine or for another node to take
over, and short enough that a node that is no longer needed soon has its memory back."""


class Orphans:
    """Tracks which node coordinates each deployment, and since when none does. For the agent's
    event loop.

    ``is_used`` returns whether the stages of a deployment are in use after all, in which case they
    are held for another ``seconds``; ``end`` is called when they are not.
    """

    def __init__(
        self,
        seconds: float,
        *,
        is_used: Callable[[DeploymentId], bool],
        end: Callable[[DeploymentId], None],
    ) -> None:
        self._seconds = seconds
        self._is_used = is_used
        self._end = end
        self._coordinators: dict[DeploymentId, NodeId] = {}
        self._timers: dict[DeploymentId, asyncio.TimerHandle] = {}

    def note_request(self, deployment: DeploymentId, coordinator: NodeId) -> None:
        """Record that a coordinator has asked for something."""
        self._coordinators[deployment] = coordinator
        if (timer := self._timers.pop(deployment, None)) is not None:
            timer.cancel()

    def announced(self, deployment: DeploymentId, coordinator: NodeId) -> None:
        """Record that a new record names another coordinator, which has the full time to ask.

        It may be lost as well by now.
        """
        self._coordinators[deployment] = coordinator
        if deployment in self._timers:
            self._wait(deployment)

    def left(self, coordinator: NodeId) -> None:
        """Handle a node that left, perhaps a coordinator."""
        for deployment, known in self._coordinators.items():
            if known == coordinator:
                self._wait(deployment)

    def close(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _wait(self, deployment: DeploymentId) -> None:
        if (timer := self._timers.get(deployment)) is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        self._timers[deployment] = loop.call_later(self._seconds, self._over, deployment)

    def _over(self, deployment: DeploymentId) -> None:
        if self._is_used(deployment):
            self._wait(deployment)
        else:
            del self._timers[deployment]
            self._end(deployment)
