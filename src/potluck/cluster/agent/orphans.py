"""How long a node holds stages that no coordinator asks for any more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from potluck.types.cluster import DeploymentId, NodeId

ORPHAN_SECONDS = 600.0
"""Ten minutes: longer than a coordinator's machine takes to restart, or another node to take over,
and short enough that a node which nobody will ask again has its memory back soon."""


class Orphans:
    """Who coordinates which deployment, and since when nobody does. For use in the agent's loop.

    ``is_used`` tells whether somebody uses the stages of a deployment after all, and then they are
    held for another ``seconds``; ``end`` is called when nobody does.
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

    def asked(self, deployment: DeploymentId, coordinator: NodeId) -> None:
        """A coordinator has asked for something: it is there."""
        self._coordinators[deployment] = coordinator
        if (timer := self._timers.pop(deployment, None)) is not None:
            timer.cancel()

    def announced(self, deployment: DeploymentId, coordinator: NodeId) -> None:
        """A record names another coordinator, which has the full time to ask.

        It may be lost as well by now.
        """
        self._coordinators[deployment] = coordinator
        if deployment in self._timers:
            self._wait(deployment)

    def left(self, coordinator: NodeId) -> None:
        """A node is gone, perhaps a coordinator."""
        for deployment, known in self._coordinators.items():
            if known == coordinator:
                self._wait(deployment)

    def close(self) -> None:
        """End nothing any more."""
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
