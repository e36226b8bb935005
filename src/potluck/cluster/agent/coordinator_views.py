"""Asks the other nodes about a deployment whose coordinator this node does not see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from potluck.cluster.calls import AskCoordinatorView, CoordinatorView, decode, encode
from potluck.cluster.membership import Membership
from potluck.errors import CallError
from potluck.types.cluster import DeploymentId, Epoch, NodeId
from potluck.types.deployment import DeploymentRecord

_ASK_SECONDS = 1.0
"""The time limit for an answer. A node that is stopped is detected by its lease in about as long.
"""

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
        payload = encode(AskCoordinatorView(deployment=record.deployment, known=record.epoch))
        nodes = sorted(self._membership.nodes())
        answers = await asyncio.gather(*(self._ask(node, payload) for node in nodes))
        return {
            node: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None
        }

    async def _ask(self, node: NodeId, payload: bytes) -> CoordinatorView | None:
        try:
            answer = await self._membership.call(
                node, "deployment.coordinator_view", payload, timeout_seconds=_ASK_SECONDS
            )
            return decode(answer, CoordinatorView)
        except CallError:
            return None
