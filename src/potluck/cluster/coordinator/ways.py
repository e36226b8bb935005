"""Which of two nodes can connect to the other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from potluck.cluster.network.membership import Membership
from potluck.cluster.wire.calls import AskSpeeds, CheckLinks
from potluck.cluster.wire.methods import CHECK_LINKS, SPEEDS
from potluck.errors import EdgeError
from potluck.types.cluster import NodeId

_SECONDS = 4.0
"""The time for the nodes to answer, which takes them a millisecond if they are idle, and more than
a second if every core starts workers. Without its answer a plan assumes that the node can connect
to all others, which costs more time than to wait."""

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
    requests = dict.fromkeys(nodes, AskSpeeds(model_shapes=()))
    answers = await SPEEDS.call_all(membership, requests, timeout_seconds=_SECONDS)
    return _reachability({node: each.unreachable for node, each in answers.items()})


async def checked_reachability(membership: Membership, nodes: Collection[NodeId]) -> Reachability:
    """Have nodes try to connect to each other now; those that do not answer in time are ignored.

    An address or a firewall may have changed since they last tried.
    """
    if len(nodes) < 2:
        return ANY_WAY
    requests = {
        node: CheckLinks(nodes=tuple(each for each in nodes if each != node)) for node in nodes
    }
    answers = await CHECK_LINKS.call_all(membership, requests)
    return _reachability({node: each.nodes for node, each in answers.items()})


def _reachability(unreachable: Mapping[NodeId, Iterable[NodeId]]) -> Reachability:
    closed = ((node, each) for node, others in unreachable.items() for each in others)
    return Reachability(closed=frozenset(closed))
