"""How long the members of a group take to exchange slices of what they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from potluck.placement.links import HOP_SECONDS, LinkTable
from potluck.placement.speed import worst
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis

EXCHANGE_SECONDS = 10e-6
PEER_SECONDS = 15e-6
"""The cost of an exchange on a member's thread for each other member, in addition to the links. Two
members on one machine exchange 8 KiB in 13 µs if each has a core, and in 42 µs next to other work
(``benchmarks/exchange.py``). The measured latency of a link is higher, because a thread is woken
for its frames, while members poll. A small board's kernel takes longer to send than this machine's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLinks:
    """The links between the members of a group.

    Each member sends to all others one after the other, while the others do the same.
    ``seconds_per_byte[a][b]`` applies to the link from member ``a`` to ``b``. ``latency_seconds``
    is that of the slowest link, ``overhead_seconds`` the additional cost of every exchange on the
    slowest member, and ``basis`` the basis of the least certain link.
    """

    latency_seconds: float
    overhead_seconds: float
    seconds_per_byte: tuple[tuple[float, ...], ...]
    basis: Basis

    def exchange_seconds(self, sent_bytes: Sequence[float]) -> float:
        """Return how long it takes until every member has received what each of the others sent."""
        members = range(len(sent_bytes))
        rates = self.seconds_per_byte
        busiest = 0.0
        for member in members:
            others = [other for other in members if other != member]
            sending = sum(sent_bytes[member] * rates[member][other] for other in others)
            receiving = sum(sent_bytes[other] * rates[other][member] for other in others)
            busiest = max(busiest, sending, receiving)
        return self.overhead_seconds + self.latency_seconds + busiest

    def gather_seconds(self, sent_bytes: Sequence[float]) -> float:
        """Return how long it takes until member 0 has received what each of the others sent."""
        receiving = sum(
            each * self.seconds_per_byte[member][0]
            for member, each in enumerate(sent_bytes)
            if member
        )
        return self.overhead_seconds + self.latency_seconds + receiving

    def pass_on_seconds(self, num_bytes: float) -> float:
        """Return how long it takes until every member has received a step that the leader passes
        on.
        """
        sending = sum(num_bytes * each for each in self.seconds_per_byte[0][1:])
        return HOP_SECONDS + self.latency_seconds + sending


def group_links(nodes: Sequence[NodeId], links: LinkTable, slowness: Sequence[float]) -> GroupLinks:
    """Return the links between members on these nodes; several members may be on one node.

    ``slowness`` says, for each member, how many times slower it is than the machine on which the
    constants in this module were measured.
    """
    pairs = [[links.link(source, target) for target in nodes] for source in nodes]
    between = [link for a, row in enumerate(pairs) for b, link in enumerate(row) if a != b]
    overhead = EXCHANGE_SECONDS + PEER_SECONDS * (len(nodes) - 1)
    return GroupLinks(
        latency_seconds=max(link.latency_seconds for link in between),
        overhead_seconds=overhead * max(slowness),
        seconds_per_byte=tuple(
            tuple(0.0 if a == b else 1 / link.bytes_per_second for b, link in enumerate(row))
            for a, row in enumerate(pairs)
        ),
        basis=worst(*(link.basis for link in between)),
    )
