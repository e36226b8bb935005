"""The links between the machines of a fleet. Figures from a file are not measured."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.placement.fleet.description import Fleet, LinkFigures, LinkPair, Machine
from potluck.placement.fleet.reports import node_id_of
from potluck.placement.links import NETWORK, Link, LinkTable
from potluck.types.cluster import NodeId
from potluck.types.placement import Basis

_LEAST_LATENCY_SECONDS = 1e-6


def fleet_links(fleet: Fleet) -> LinkTable:
    """Return the links of a fleet; missing figures are assumed."""
    network = _link(fleet.links, NETWORK)
    machines = {machine.name: machine for machine in fleet.machines}
    links: dict[tuple[NodeId, NodeId], Link] = {}
    for pair in fleet.pairs:
        link = _link(pair.figures, network)
        for source, target in _nodes(pair, machines):
            links[source, target] = link
            if pair.is_one_way:
                # Without a link of its own, the way back would be assumed to be like the way there.
                links.setdefault((target, source), network)
            else:
                links[target, source] = link
    names = [name for machine in fleet.machines for name in machine.names]
    return LinkTable(
        links=links,
        host_ids={node_id_of(name): node_id_of(name) for name in names},
        network=network,
    )


def _link(figures: LinkFigures, otherwise: Link) -> Link:
    latency, bandwidth = figures.latency_seconds, figures.bytes_per_second
    is_whole = latency is not None and bandwidth is not None
    return Link(
        latency_seconds=(
            otherwise.latency_seconds if latency is None else max(_LEAST_LATENCY_SECONDS, latency)
        ),
        bytes_per_second=otherwise.bytes_per_second if bandwidth is None else bandwidth,
        basis=Basis.TABLE if is_whole else otherwise.basis,
    )


def _nodes(pair: LinkPair, machines: dict[str, Machine]) -> Iterator[tuple[NodeId, NodeId]]:
    for source in machines[pair.source].names:
        for target in machines[pair.target].names:
            if source != target:
                yield node_id_of(source), node_id_of(target)
