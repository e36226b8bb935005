"""What the other nodes make of a deployment whose coordinator this node does not see."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from potluck.cluster.calls import AskOutlook, DeploymentRecord, Outlook, decode, encode
from potluck.cluster.membership import Membership
from potluck.errors import CallError
from potluck.types.cluster import DeploymentId, Epoch, NodeId

_ASK_SECONDS = 1.0
"""One that stands still is noticed by its lease in about as long."""

_Question = tuple[DeploymentId, Epoch]


class Outlooks:
    """Asks all members that are there. For use in the agent's loop.

    Those who want to know the same at the same time share the answers: every sequence of a gateway
    does when a coordinator is lost.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._asking: dict[_Question, asyncio.Task[Mapping[NodeId, Outlook]]] = {}

    async def ask(self, record: DeploymentRecord) -> Mapping[NodeId, Outlook]:
        """Return the answers of those that gave one within a second, by node."""
        question = (record.deployment, record.epoch)
        asking = self._asking.get(question)
        if asking is None:
            asking = asyncio.ensure_future(self._ask_all(record))
            self._asking[question] = asking
            asking.add_done_callback(partial(self._asked, question))
        return await asyncio.shield(asking)

    def _asked(self, question: _Question, asking: asyncio.Task[Mapping[NodeId, Outlook]]) -> None:
        del self._asking[question]
        if not asking.cancelled():
            asking.exception()  # those who wait for it are told; there may be none left

    async def _ask_all(self, record: DeploymentRecord) -> Mapping[NodeId, Outlook]:
        payload = encode(AskOutlook(deployment=record.deployment, known=record.epoch))
        nodes = sorted(self._membership.nodes())
        answers = await asyncio.gather(*(self._ask(node, payload) for node in nodes))
        return {
            node: answer for node, answer in zip(nodes, answers, strict=True) if answer is not None
        }

    async def _ask(self, node: NodeId, payload: bytes) -> Outlook | None:
        try:
            answer = await self._membership.call(
                node, "deployment.outlook", payload, timeout_seconds=_ASK_SECONDS
            )
            return decode(answer, Outlook)
        except CallError:
            return None
