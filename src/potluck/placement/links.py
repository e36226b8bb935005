"""How long a step takes from one node to another.

Nodes report measured links. If there is no measurement, or an implausible one, a typical local
network is assumed between machines, and the loopback interface within one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId
from potluck.types.placement import Basis
from potluck.types.speed import NodeSpeeds

HEADER_BYTES = 200
"""A frame's preamble and the header of a step of one sequence, including TLS overhead."""
HEADER_BYTES_PER_TOKEN = 60
_FLOAT_BYTES = 4
HOP_SECONDS = 100e-6
"""The cost of a hop in addition to its link: encoding, encrypting and decoding a frame, and waking
a thread.
"""

_LATENCY = (0.0, 60.0)
_BYTES_PER_SECOND = (1e2, 1e13)
_LEAST_LATENCY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The link from one node to another: one-way latency of a small frame, and bandwidth.

    Both are positive and finite.
    """

    latency_seconds: float
    bytes_per_second: float
    basis: Basis

    def with_figures(
        self, latency_seconds: float | None, bytes_per_second: float | None, basis: Basis
    ) -> Link:
        """Return this link with the given figures instead of its own; None keeps its own.

        The result has this ``basis`` if both are given, and that of this link otherwise.
        """
        is_whole = latency_seconds is not None and bytes_per_second is not None
        latency = self.latency_seconds if latency_seconds is None else latency_seconds
        return Link(
            latency_seconds=max(_LEAST_LATENCY, latency),
            bytes_per_second=self.bytes_per_second
            if bytes_per_second is None
            else bytes_per_second,
            basis=basis if is_whole else self.basis,
        )

    def hop_seconds(self, num_bytes: float) -> float:
        """Return the time from when a frame is ready to be sent until it has arrived."""
        return HOP_SECONDS + self.latency_seconds + self.busy_seconds(num_bytes)

    def busy_seconds(self, num_bytes: float) -> float:
        """Return how long a frame occupies the link."""
        return num_bytes / self.bytes_per_second


NETWORK = Link(latency_seconds=300e-6, bytes_per_second=100e6, basis=Basis.ASSUMED)
"""Between machines: Gigabit Ethernet with a switch."""
_CLOSED = Link(latency_seconds=1e4, bytes_per_second=1e3, basis=Basis.MEASURED)
"""Between nodes of which neither can connect to the other: a plan makes them neighbours only if
there is no other choice, and then fails to connect, with the reason."""

LOOPBACK = Link(latency_seconds=60e-6, bytes_per_second=2e9, basis=Basis.TABLE)
"""Within a machine, with TLS (``benchmarks/results/hop.json``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Links by ordered pair of nodes, and the machine of each node.

    ``network`` and ``loopback`` are used for missing links. Each node whose machine is unknown is
    assumed to be on a machine of its own.
    """

    links: Mapping[tuple[NodeId, NodeId], Link] = field(default_factory=dict)
    host_ids: Mapping[NodeId, str] = field(default_factory=dict)
    network: Link = NETWORK
    loopback: Link = LOOPBACK

    def link(self, source: NodeId, target: NodeId) -> Link:
        """Return the link from ``source`` to ``target``, which may be two units of one node.

        If only the opposite direction was measured, both directions are assumed to be alike.
        """
        found = self.links.get((source, target)) or self.links.get((target, source))
        if found is not None:
            return found
        host_id = self.host_ids.get(source)
        is_same = source == target or (host_id is not None and host_id == self.host_ids.get(target))
        return self.loopback if is_same else self.network

    def is_closed(self, source: NodeId, target: NodeId) -> bool:
        """Return whether neither of two nodes can connect to the other."""
        return self.link(source, target) is _CLOSED


def link_table(speeds: Collection[NodeSpeeds], host_ids: Mapping[NodeId, str]) -> LinkTable:
    """Return the links that nodes report, without implausible values.

    A report with a latency but no bandwidth, or the reverse, is used for the value that it has.
    """
    links: dict[tuple[NodeId, NodeId], Link] = {}
    assumed = LinkTable(host_ids=host_ids)
    for node in speeds:
        for speed in node.links:
            latency = _believed(speed.latency_seconds, _LATENCY)
            bandwidth = _believed(speed.bytes_per_second, _BYTES_PER_SECOND)
            if speed.num_samples < 1 or (latency is None and bandwidth is None):
                continue
            default = assumed.link(node.node_id, speed.node_id)
            links[node.node_id, speed.node_id] = default.with_figures(
                latency, bandwidth, Basis.MEASURED
            )
    closed = {(node.node_id, other) for node in speeds for other in node.unreachable}
    links.update({pair: _CLOSED for pair in closed if pair[::-1] in closed})
    return LinkTable(links=links, host_ids=dict(host_ids))


def step_bytes(num_tokens: int, hidden_size: int) -> int:
    """Return the bytes of a step's frame between two stages."""
    return header_bytes(num_tokens) + num_tokens * hidden_size * _FLOAT_BYTES


def header_bytes(num_tokens: int) -> int:
    """Return the bytes of a frame without hidden states: a step to the first stage, or a result."""
    return HEADER_BYTES + num_tokens * HEADER_BYTES_PER_TOKEN


def _believed(value: float, bounds: tuple[float, float]) -> float | None:
    least, most = bounds
    return value if math.isfinite(value) and least <= value <= most else None
