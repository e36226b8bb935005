"""Find the best placement of a model: take units, links and preferences, return a plan. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.cuts import Cut, bytes_of, shard_of
from potluck.placement.group_search import choices
from potluck.placement.grouping import GroupedRequest, arranged, can_join, placed_on, with_groups
from potluck.placement.layout import check_layout
from potluck.placement.links import HOP_SECONDS, LinkTable, header_bytes, step_bytes
from potluck.placement.offering import Pool
from potluck.placement.path import Floats, Path, PathProblem
from potluck.placement.prediction import predict
from potluck.placement.solver import best_throughput, shortest_path
from potluck.placement.solver.table import DEFAULT_ELEMENTS
from potluck.placement.times import once_each
from potluck.placement.within_pools import best_within, with_usable
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId
from potluck.types.groups import LayoutStage, group_ranges
from potluck.types.placement import PlacedStage, Plan
from potluck.types.program import Shard
from potluck.types.quantities import format_bytes, format_count

_MARGINAL = 0.02
"""A plan may be slower by this fraction if it then uses one unit fewer: less than the error of
predictions.
"""

_LEAST_GAIN = 0.05
"""A plan with groups must be better than one without by this fraction: losing one unit loses the
whole group, and its exchanges are less predictable than its computation."""

_MOST_BESIDE = 8
"""With up to this many units, all may have stages next to groups; with more, only those of the plan
without groups.
"""
_MAX_SLOWDOWN = 1.5
"""Groups are not tried if a step is estimated to take this many times as long as in the plan
without groups.
"""
_CHOICES_PART = 16
"""The search for each choice of groups gets this fraction (1/n) of the budget of that without
groups.
"""


def problem_of(request: PlaceRequest, num_sequences: int) -> PathProblem:
    """Return the path problem of steps of this many sequences that decode, ignoring pools.

    Units are the candidates, in their order. Source and sink are the coordinator. Raise
    ``ValueError`` if there is no unit.
    """
    return problems_of(request)(num_sequences)


def problems_of(request: PlaceRequest) -> Callable[[int], PathProblem]:
    """Return ``problem_of`` as a function of the number of sequences.

    Whatever does not depend on it is computed once. Raise ``ValueError`` if there is no unit.
    """
    candidates, context_tokens = request.candidates, request.preferences.context_tokens
    if not candidates:
        raise ValueError("there are no units")
    hidden_size = candidates[0].times.work.hidden_size
    usable_bytes = np.array([max(0, each.usable_bytes) for each in candidates], np.int64)
    costs = (each.cost for each in candidates)
    item_bytes = np.array(once_each(costs, lambda cost: cost.item_bytes), np.int64)
    stage_bytes = np.array([each.cost.stage_bytes for each in candidates], np.int64)
    shared_bytes = np.array([each.cost.shared_bytes for each in candidates], np.int64)
    lone_bytes = np.array(
        [(each.cost.lone_embedding_bytes, each.cost.lone_head_bytes) for each in candidates],
        np.int64,
    )
    nodes = [*(each.node_id for each in candidates), request.coordinator]
    no_cuts = frozenset(layer + 1 for layer in candidates[0].cost.no_cuts)
    latency, seconds_per_byte = _link_matrices(nodes, request.links)

    def problem(num_sequences: int) -> PathProblem:
        times = (each.times for each in candidates)
        parts = once_each(times, lambda each: each.decode(num_sequences, context_tokens))
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


def place(request: PlaceRequest, *, num_elements: int = DEFAULT_ELEMENTS) -> Plan | None:
    """Return the best plan for the preferences, with its prediction; None if the model does not
    fit.

    Each search of the solver computes about ``num_elements`` at most. Raise ``ParameterError`` for
    a layout that is not possible.
    """
    if not request.candidates:
        return None
    if request.preferences.layout:
        found = _arranged_layout(request)
        return plan_of(found.request, found.cuts)
    plan: Plan | None = None
    wanted = request.preferences.tensor_parallel
    if wanted is None or wanted == 1:
        best = _search(request, num_elements)
        plan = None if best is None else plan_of(request, best.cuts, gap=best.gap)
    if wanted == 1:
        return plan
    if wanted is not None:
        _require_members(request, wanted)
    most_seconds = math.inf
    if (
        plan is not None
        and plan.prediction is not None
        and request.preferences.objective is Objective.LATENCY
    ):
        most_seconds = plan.prediction.token_seconds * _MAX_SLOWDOWN
    in_groups = place_in_groups(request, plan, most_seconds=most_seconds, num_elements=num_elements)
    if plan is None or in_groups is None:
        return plan or in_groups
    return in_groups if _gain(request, in_groups, plan) >= _LEAST_GAIN else plan


def _gain(request: PlaceRequest, best: Plan, plan: Plan) -> float:
    """Return how much better a plan with groups is, less its greater uncertainty."""
    margins = [0.0 if each.prediction is None else each.prediction.margin for each in (best, plan)]
    doubt = max(0.0, margins[0] - margins[1])
    return _rate(request, best) / _rate(request, plan) / (1 + doubt) - 1


def _require_members(request: PlaceRequest, wanted: int) -> None:
    able = sum(map(can_join, request.candidates))
    if able < wanted:
        raise ParameterError(
            "tensor_parallel",
            f"--tensor-parallel {wanted}: {format_count(able, 'unit')} can join a group",
            hint="use --tensor-parallel auto; only CPUs with the native backend can join",
        )


def place_in_groups(
    request: PlaceRequest,
    plan: Plan | None,
    *,
    most_seconds: float = math.inf,
    num_elements: int = DEFAULT_ELEMENTS,
) -> Plan | None:
    """Return the best plan with a group, of those that are tried; None if none was found.

    Groups with which a step is estimated to take longer than ``most_seconds`` are not tried.

    Units in no group may have stages as well, unless the preferences require a number of units per
    stage: all of them if they are few, and otherwise those that ``plan``, which has no groups,
    uses.
    """
    wanted = request.preferences.tensor_parallel
    used = {stage.unit for stage in plan.stages} if plan is not None else set()
    is_small = len(request.candidates) <= _MOST_BESIDE
    others = [
        index for index, each in enumerate(request.candidates) if is_small or each.unit in used
    ]
    best: Plan | None = None
    problem = problem_of(request, 1)
    for groups in choices(request, problem, wanted, most_seconds=most_seconds):
        members = {member for group in groups for member in group.members}
        alone = [each for each in others if wanted is None and each not in members]
        grouped = with_groups(request, groups, alone)
        found = _search(grouped, num_elements // _CHOICES_PART)
        if found is None or not any(grouped.candidates[cut.unit].members for cut in found.cuts):
            continue
        other = plan_of(grouped, found.cuts, gap=found.gap)
        if best is None or _is_better(request, other, best):
            best = other
    return best


def _is_better(request: PlaceRequest, one: Plan, other: Plan) -> bool:
    """Return whether one plan is better, or about as good and on fewer units."""
    ratio = _rate(request, one) / _rate(request, other)
    if len(one.stages) < len(other.stages):
        return ratio >= 1 - _MARGINAL
    return ratio >= 1 + _MARGINAL


def _rate(request: PlaceRequest, plan: Plan) -> float:
    """Return the tokens per second that the objective counts."""
    if plan.prediction is None:
        raise ValueError("the plan has no prediction")
    return plan.prediction.rate(request.preferences.objective)


def plan_of(request: PlaceRequest, cuts: Sequence[Cut], *, gap: float = 0.0) -> Plan:
    """Return the plan of these stages on the candidates, with its prediction."""
    return Plan(
        stages=placed_stages(request, cuts),
        rejections=(),
        prediction=predict(request, cuts, gap=gap),
    )


def placed_stages(request: PlaceRequest, cuts: Sequence[Cut]) -> tuple[PlacedStage, ...]:
    """Return the placed stages of ``cuts``, whose units are indices of the candidates."""
    return tuple(
        stage
        for cut in cuts
        for stage in placed_on(request.candidates[cut.unit], cut, request.num_layers)
    )


def _search(request: PlaceRequest, num_elements: int) -> Path | None:
    problems = problems_of(request)
    problem = problems(1)

    def least_latency(usable: Sequence[int]) -> Path | None:
        return shortest_path(with_usable(problem, usable), num_elements=num_elements)

    def most_throughput(usable: Sequence[int]) -> Path | None:
        found = best_throughput(
            lambda num_sequences: with_usable(problems(num_sequences), usable),
            request.preferences.num_streams,
            num_elements=num_elements,
        )
        return None if found is None else found.path

    is_throughput = request.preferences.objective is Objective.THROUGHPUT
    solve = most_throughput if is_throughput else least_latency
    return _without_marginal_units(problem, request.pools, solve)


def _without_marginal_units(
    problem: PathProblem,
    pools: Sequence[Pool],
    solve: Callable[[Sequence[int]], Path | None],
) -> Path | None:
    """Return the best plan, without the units that hardly improve it.

    Each additional unit is one more that may fail, so the unit that computes least is removed as
    long as the plan takes at most ``_MARGINAL`` longer than the best one.
    """
    best = chosen = best_within(problem, pools, solve)
    left_out: set[int] = set()
    while best is not None and chosen is not None and len(chosen.cuts) > 1:
        left_out.add(min(chosen.cuts, key=problem.seconds_of).unit)
        usable = [0 if i in left_out else int(n) for i, n in enumerate(problem.usable_bytes)]
        found = best_within(with_usable(problem, usable), pools, solve)
        if (
            found is None
            or found.seconds > best.seconds * (1 + _MARGINAL)
            or len(found.cuts) >= len(chosen.cuts)
        ):
            break
        chosen = replace(found, bound_seconds=best.bound_seconds)
    return chosen


def only_units(request: PlaceRequest, indices: Iterable[int]) -> PlaceRequest:
    """Return the request with only some of its candidates, in their order."""
    kept = sorted(indices)
    places = {index: place for place, index in enumerate(kept)}
    return replace(
        request,
        candidates=tuple(request.candidates[index] for index in kept),
        pools=tuple(
            replace(
                pool,
                members=frozenset(places[index] for index in pool.members if index in places),
            )
            for pool in request.pools
        ),
    )


def _arranged_layout(request: PlaceRequest) -> GroupedRequest:
    """Return the stages of the user's layout. Raise ``ParameterError`` if they are not possible."""
    layout = request.preferences.layout
    check_layout(layout, request.num_layers, request.candidates[0].cost.no_cuts)
    units = {each.unit: each for each in request.candidates}
    for each in layout:
        where = f"{each.unit_id} on node {each.node_id}"
        unit = units.get(each.unit)
        if unit is None:
            raise ParameterError(
                "layout",
                f"{where} cannot be used",
                hint="potluck ps shows which units can be used, and why others cannot",
            )
        if each.part is not None and (request.divide is None or not can_join(unit)):
            raise ParameterError(
                "layout",
                f"{where} cannot join a group",
                hint="only CPUs with the native backend can",
            )
    # Each may use all that it offers: workers refuse a stage that does not fit next to the others.
    stages = tuple(_stages_of(layout, request.num_layers))
    found = arranged(replace(request, pools=()), stages)
    for cut in found.cuts:
        candidate = found.request.candidates[cut.unit]
        shard = shard_of(cut.start, cut.end, request.num_layers)
        for member in candidate.members or (candidate,):
            _require_room(member, cut, shard.end_layer - shard.start_layer)
    return found


def _stages_of(layout: Sequence[LayoutStage], num_layers: int) -> Iterator[PlacedStage]:
    """Yield the stages of a valid layout, with unknown sizes."""
    start = 0
    for members in group_ranges(each.part for each in layout):
        end = start + layout[members.start].num_layers
        shard = Shard(
            start_layer=start,
            end_layer=end,
            num_layers=num_layers,
            has_embedding=members.start == 0,
            has_head=members.stop == len(layout),
        )
        for each in layout[members.start : members.stop]:
            own = replace(shard, part=each.part)
            yield PlacedStage(node_id=each.node_id, unit_id=each.unit_id, shard=own, num_bytes=0)
        start = end


def _require_room(unit: Candidate, cut: Cut, num_layers: int) -> None:
    needed = bytes_of(unit.cost, cut.start, cut.end)
    if needed > unit.usable_bytes:
        raise InsufficientMemoryError(
            needed,
            unit.usable_bytes,
            f"{num_layers} layers need {format_bytes(needed)} on {unit.unit_id} on node "
            f"{unit.node_id}, but only {format_bytes(max(0, unit.usable_bytes))} are usable",
            hint="give it fewer layers in --layout",
        )
