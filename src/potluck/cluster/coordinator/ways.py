"""Which of two nodes can connect to the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from potluck.cluster.calls import AskSpeeds, CheckLinks, Unreachable, decode, encode
from potluck.cluster.membership import Membership
from potluck.errors import EdgeError, PotluckError
from potluck.types.cluster import NodeId
from potluck.types.speed import NodeSpeeds

_log = logging.getLogger(__name__)

_SECONDS = 4.0
"""The time for the nodes to answer, which takes them a millisecond if they are idle, and more than
a second if every core starts workers. Without its answer a plan assumes that the node can connect
to all others, which costs more time than to wait."""

_CHECK_SECONDS = 15.0
"""The time for nodes to try: a call, and a connection to an address that does not answer."""

OPEN_PORT_HINT = (
    "open the cluster's port on one of them; potluck doctor shows which nodes can connect"
)
"""For two nodes of which neither can connect to the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """Pairs of nodes of which the first could not connect to the second when it last tried."""

    closed: frozenset[tuple[NodeId, NodeId]] = frozenset()

    @property
    def silent_pairs(self) -> tuple[tuple[NodeId, NodeId], ...]:
        """Return the pairs of nodes that cannot connect in either direction, each once."""
        return tuple(
            sorted(pair for pair in self.closed if pair < pair[::-1] and pair[::-1] in self.closed)
        )

    def is_reversed(self, sender: NodeId, receiver: NodeId) -> bool:
        """Return whether the receiver has to open the edge.

        Raise ``EdgeError`` if neither can connect to the other.
        """
        if (sender, receiver) not in self.closed:
            return False
        if (receiver, sender) in self.closed:
            raise EdgeError(
                receiver,
                f"neither it nor node {sender} can connect to the other",
                hint=OPEN_PORT_HINT,
            )
        return True


ANY_WAY = Reachability()


async def known_reachability(membership: Membership, nodes: Collection[NodeId]) -> Reachability:
    """Ask nodes whom they cannot connect to; nodes that do not answer in time are ignored.

    Plans continue without an answer: edges are then opened by their senders.
    """
    request = encode(AskSpeeds(model_shapes=()))

    async def ask(node: NodeId) -> Iterable[tuple[NodeId, NodeId]]:
        try:
            answer = await membership.call(node, "node.speeds", request, timeout_seconds=_SECONDS)
            return [(node, each) for each in decode(answer, NodeSpeeds).unreachable]
        except PotluckError as error:
            _log.debug("node %s does not report whom it can connect to: %s", node, error.message)
            return []

    return _reachability(await asyncio.gather(*(ask(node) for node in set(nodes))))


async def checked_reachability(membership: Membership, nodes: Collection[NodeId]) -> Reachability:
    """Have nodes try to connect to each other now; those that do not answer in time are ignored.

    An address or a firewall may have changed since they last tried.
    """

    async def ask(node: NodeId) -> Iterable[tuple[NodeId, NodeId]]:
        request = encode(CheckLinks(nodes=tuple(each for each in nodes if each != node)))
        try:
            answer = await membership.call(
                node, "link.check", request, timeout_seconds=_CHECK_SECONDS
            )
            return [(node, each) for each in decode(answer, Unreachable).nodes]
        except PotluckError as error:
            _log.debug("node %s does not test its connections: %s", node, error.message)
            return []

    if len(nodes) < 2:
        return ANY_WAY
    return _reachability(await asyncio.gather(*(ask(node) for node in nodes)))


def _reachability(answers: Iterable[Iterable[tuple[NodeId, NodeId]]]) -> Reachability:
    return Reachability(closed=frozenset(pair for pairs in answers for pair in pairs))
