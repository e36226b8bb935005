"""How long a step takes from one node to another.

Measured links are nodes' own reports. Where there is none, or one that cannot be true, an ordinary
local network is assumed between machines, and the loopback interface within one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from potluck.types.cluster import NodeId
from potluck.types.placement import Basis
from potluck.types.speed import NodeSpeeds

HEADER_BYTES = 200
"""A frame's preamble and the header of a step of one sequence, with what TLS adds."""
HEADER_BYTES_PER_TOKEN = 60
_FLOAT_BYTES = 4
HOP_SECONDS = 100e-6
"""What a hop takes besides its link: a frame is encoded, encrypted, decoded, and a thread woken."""

_LATENCY = (0.0, 60.0)
_BYTES_PER_SECOND = (1e2, 1e13)
_LEAST_LATENCY = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The way from one node to another: one-way latency of a small frame, and bandwidth.

    Both are positive and finite.
    """

    latency_seconds: float
    bytes_per_second: float
    basis: Basis

    def hop_seconds(self, num_bytes: float) -> float:
        """Return how much later a frame arrives than it was ready to be sent."""
        return HOP_SECONDS + self.latency_seconds + self.busy_seconds(num_bytes)

    def busy_seconds(self, num_bytes: float) -> float:
        """Return how long a frame occupies the link."""
        return num_bytes / self.bytes_per_second


NETWORK = Link(latency_seconds=300e-6, bytes_per_second=100e6, basis=Basis.ASSUMED)
"""Between machines: Ethernet of a gigabit with a switch."""
LOOPBACK = Link(latency_seconds=60e-6, bytes_per_second=2e9, basis=Basis.TABLE)
"""Within a machine, with TLS (``benchmarks/results/hop.json``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Links by ordered pair of nodes, and the machine of each node.

    ``network`` and ``loopback`` stand for links that are not there. Nodes whose machine is not
    known are on machines of their own.
    """

    links: Mapping[tuple[NodeId, NodeId], Link] = field(default_factory=dict)
    host_ids: Mapping[NodeId, str] = field(default_factory=dict)
    network: Link = NETWORK
    loopback: Link = LOOPBACK

    def link(self, source: NodeId, target: NodeId) -> Link:
        """Return the way from ``source`` to ``target``, also of two units of one node.

        Where only the way back was measured, both are taken to be alike.
        """
        found = self.links.get((source, target)) or self.links.get((target, source))
        if found is not None:
            return found
        host_id = self.host_ids.get(source)
        is_same = source == target or (host_id is not None and host_id == self.host_ids.get(target))
        return self.loopback if is_same else self.network


def link_table(speeds: Iterable[NodeSpeeds], host_ids: Mapping[NodeId, str]) -> LinkTable:
    """Return the links that nodes report; what cannot be true is left out.

    A report with a latency and without a bandwidth, or the reverse, counts for what it has.
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
            is_whole = latency is not None and bandwidth is not None
            links[node.node_id, speed.node_id] = Link(
                latency_seconds=max(
                    _LEAST_LATENCY, default.latency_seconds if latency is None else latency
                ),
                bytes_per_second=default.bytes_per_second if bandwidth is None else bandwidth,
                basis=Basis.MEASURED if is_whole else default.basis,
            )
    return LinkTable(links=links, host_ids=dict(host_ids))


def step_bytes(num_tokens: int, hidden_size: int) -> int:
    """Return the bytes of a step's frame between two stages."""
    return header_bytes(num_tokens) + num_tokens * hidden_size * _FLOAT_BYTES


def header_bytes(num_tokens: int) -> int:
    """Return the bytes of a frame without hidden states: to the first stage, and results."""
    return HEADER_BYTES + num_tokens * HEADER_BYTES_PER_TOKEN


def _believed(value: float, bounds: tuple[float, float]) -> float | None:
    least, most = bounds
    return value if math.isfinite(value) and least <= value <= most else None
