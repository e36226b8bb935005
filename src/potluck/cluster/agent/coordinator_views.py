"""Asks the other nodes about a deployment whose coordinator this node does not see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from potluck.cluster.calls import AskCoordinatorView, CoordinatorView
from potluck.cluster.membership import Membership
from potluck.cluster.methods import COORDINATOR_VIEW
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

_Question = tuple[DeploymentId, Epoch]


class CoordinatorViews:
    """Asks all current members. For use in the agent's event loop.

    Concurrent identical questions share the answers: every sequence of a gateway asks when a
    coordinator is lost.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._asking: dict[_Question, asyncio.Task[Mapping[NodeId, CoordinatorView]]] = {}

    async def ask(self, record: DeploymentRecord) -> Mapping[NodeId, CoordinatorView]:
        """Return the answers given within a second, by node."""
        question = (record.deployment, record.epoch)
        asking = self._asking.get(question)
        if asking is None:
            asking = asyncio.ensure_future(self._ask_all(record))
            self._asking[question] = asking
            asking.add_done_callback(partial(self._finish, question))
        return await asyncio.shield(asking)

    def _finish(
        self, question: _Question, asking: asyncio.Task[Mapping[NodeId, CoordinatorView]]
    ) -> None:
        del self._asking[question]
        if not asking.cancelled():
            asking.exception()  # the callers get it; there may be none left

    async def _ask_all(self, record: DeploymentRecord) -> Mapping[NodeId, CoordinatorView]:
        request = AskCoordinatorView(deployment=record.deployment, known=record.epoch)
        requests = dict.fromkeys(sorted(self._membership.nodes()), request)
        return await COORDINATOR_VIEW.call_all(self._membership, requests)
