"""A ``PathProblem`` of units and links, for a step that decodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from potluck.placement.candidates import Candidate
from potluck.placement.links import HOP_SECONDS, LinkTable, header_bytes, step_bytes
from potluck.placement.path import Floats, PathProblem
from potluck.placement.times import PartTimes
from potluck.types.cluster import NodeId
from potluck.types.placement import ModelCost


def path_problem(
    candidates: Sequence[Candidate],
    links: LinkTable,
    *,
    coordinator: NodeId,
    num_sequences: int = 1,
    context_tokens: int = 512,
) -> PathProblem:
    """Return the problem of units for steps of ``num_sequences`` sequences that decode.

    Units are in the order of ``candidates``, all of one model. Source and sink are the coordinator.
    Raise ``ValueError`` if there is no unit.
    """
    of = path_problems(candidates, links, coordinator=coordinator, context_tokens=context_tokens)
    return of(num_sequences)


def path_problems(
    candidates: Sequence[Candidate],
    links: LinkTable,
    *,
    coordinator: NodeId,
    context_tokens: int = 512,
) -> Callable[[int], PathProblem]:
    """Return ``path_problem`` as a function of ``num_sequences``.

    Whatever does not depend on it is computed once. Raise ``ValueError`` if there is no unit.
    """
    if not candidates:
        raise ValueError("there are no units")
    hidden_size = candidates[0].times.work.hidden_size
    costs = {id(each.cost): _item_bytes(each.cost) for each in candidates}
    usable_bytes = np.array([max(0, each.usable_bytes) for each in candidates], np.int64)
    item_bytes = np.array([costs[id(each.cost)] for each in candidates], np.int64)
    stage_bytes = np.array([_stage_bytes(each.cost) for each in candidates], np.int64)
    shared_bytes = np.array([each.cost.shared_bytes for each in candidates], np.int64)
    lone_bytes = np.array([_lone_bytes(each.cost) for each in candidates], np.int64)
    nodes = [*(each.node_id for each in candidates), coordinator]
    no_cuts = frozenset(layer + 1 for layer in candidates[0].cost.no_cuts)
    latency, seconds_per_byte = _link_matrices(nodes, links)

    def problem(num_sequences: int) -> PathProblem:
        times: dict[int, PartTimes] = {}
        for each in candidates:
            if id(each.times) not in times:
                times[id(each.times)] = each.times.decode(num_sequences, context_tokens)
        parts = [times[id(each.times)] for each in candidates]
        num_bytes = np.full_like(latency, step_bytes(num_sequences, hidden_size))
        num_bytes[-1, :] = num_bytes[:, -1] = header_bytes(num_sequences)
        busy = num_bytes * seconds_per_byte
        return PathProblem(
            usable_bytes=usable_bytes,
            item_bytes=item_bytes,
            stage_bytes=stage_bytes,
            shared_bytes=shared_bytes,
            lone_bytes=lone_bytes,
            item_seconds=np.array([each.item_seconds for each in parts], np.float64),
            stage_seconds=np.array([each.stage_seconds for each in parts], np.float64),
            hop_seconds=HOP_SECONDS + latency + busy,
            busy_seconds=busy,
            no_cuts=no_cuts,
        )

    return problem


def _item_bytes(cost: ModelCost) -> tuple[int, ...]:
    return (cost.embedding_bytes, *cost.layer_bytes, cost.head_bytes)


def _stage_bytes(cost: ModelCost) -> int:
    return cost.scratch_bytes + cost.process_bytes


def _lone_bytes(cost: ModelCost) -> tuple[int, int]:
    return cost.lone_embedding_bytes, cost.lone_head_bytes


def _link_matrices(nodes: Sequence[NodeId], links: LinkTable) -> tuple[Floats, Floats]:
    """Return latency and seconds per byte between all pairs, as given by ``LinkTable.link``."""
    hosts: dict[str, int] = {}
    # Equal numbers are one machine; each node whose machine is unknown is one.
    machine = np.array(
        [
            hosts.setdefault(f"host {host}" if host is not None else f"node {node}", len(hosts))
            for node, host in ((node, links.host_ids.get(node)) for node in nodes)
        ]
    )
    is_near = machine[:, None] == machine[None, :]
    near, far = links.loopback, links.network
    latency = np.where(is_near, near.latency_seconds, far.latency_seconds)
    seconds_per_byte = np.where(is_near, 1 / near.bytes_per_second, 1 / far.bytes_per_second)
    places: dict[NodeId, list[int]] = {}
    for place, node in enumerate(nodes):
        places.setdefault(node, []).append(place)
    measured = {pair for a, b in links.links for pair in ((a, b), (b, a))}
    for source, target in measured:
        if source in places and target in places:
            link = links.link(source, target)
            cells = np.ix_(places[source], places[target])
            latency[cells] = link.latency_seconds
            seconds_per_byte[cells] = 1 / link.bytes_per_second
    return latency, seconds_per_byte
