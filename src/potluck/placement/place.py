"""The best place for a model: units, links and preferences in, a plan out. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.cuts import Cut, shard_of
from potluck.placement.layout import no_such_cut
from potluck.placement.path import PathProblem
from potluck.placement.problem import path_problem, path_problems
from potluck.placement.request import PlaceRequest, prediction_of
from potluck.placement.sharing import Pool
from potluck.placement.solver import best_throughput, shortest_path
from potluck.placement.solver.budget import DEFAULT_ELEMENTS
from potluck.placement.within_pools import Found, best_within, with_usable
from potluck.quantities import format_bytes
from potluck.types.placement import Objective, PlacedStage, Plan

_TRIFLE = 0.02
"""A part by which a plan may be slower with one unit fewer: less than predictions are sure of."""

_LAYOUT = "for example --layout NODE=12,NODE=16"


def place(request: PlaceRequest, *, num_elements: int = DEFAULT_ELEMENTS) -> Plan | None:
    """Return the best plan for the preferences, with its prediction; None if the model has no room.

    Each search of the solver computes about ``num_elements`` at most. Raise ``ParameterError`` for
    a layout that is not possible.
    """
    if not request.candidates:
        return None
    if request.preferences.layout:
        cuts = _cuts_of_layout(request)
        return plan_of(request, Found(cuts=cuts, seconds=0.0))
    found = _search(request, num_elements)
    return None if found is None else plan_of(request, found)


def plan_of(request: PlaceRequest, found: Found) -> Plan:
    """Return the plan of an answer, with its prediction."""
    stages = placed_stages(request, found.cuts)
    return Plan(
        stages=stages, rejections=(), prediction=prediction_of(request, stages, gap=found.gap)
    )


def placed_stages(request: PlaceRequest, cuts: Sequence[Cut]) -> tuple[PlacedStage, ...]:
    """Return the stages of ``cuts``, whose units are indices of the candidates."""
    problem = problem_of(request, 1)
    return tuple(
        PlacedStage(
            node_id=request.candidates[cut.unit].node_id,
            unit_id=request.candidates[cut.unit].unit_id,
            shard=shard_of(cut.start, cut.end, request.num_layers),
            num_bytes=problem.bytes_of(cut),
        )
        for cut in cuts
    )


def _search(request: PlaceRequest, num_elements: int) -> Found | None:
    problems = problems_of(request)
    problem = problems(1)

    def least_latency(usable: Sequence[int]) -> Found | None:
        path = shortest_path(with_usable(problem, usable), num_elements=num_elements)
        if path is None:
            return None
        return Found(cuts=path.cuts, seconds=path.seconds, gap=path.gap)

    def most_throughput(usable: Sequence[int]) -> Found | None:
        found = best_throughput(
            lambda num_sequences: with_usable(problems(num_sequences), usable),
            request.preferences.num_streams,
            num_elements=num_elements,
        )
        if found is None:
            return None
        return Found(cuts=found.path.cuts, seconds=found.path.seconds, gap=found.path.gap)

    is_throughput = request.preferences.objective is Objective.THROUGHPUT
    solve = most_throughput if is_throughput else least_latency
    return _without_trifles(problem, request.pools, solve)


def _without_trifles(
    problem: PathProblem,
    pools: Sequence[Pool],
    solve: Callable[[Sequence[int]], Found | None],
) -> Found | None:
    """Return the best plan, less the units that hardly make it better.

    Each further unit is one more that may be lost, so the unit with the least to compute is left
    out as long as the plan takes at most ``_TRIFLE`` longer than the best one.
    """
    best = chosen = best_within(problem, pools, solve)
    left_out: set[int] = set()
    while best is not None and chosen is not None and len(chosen.cuts) > 1:
        left_out.add(min(chosen.cuts, key=problem.seconds_of).unit)
        usable = [0 if i in left_out else int(n) for i, n in enumerate(problem.usable_bytes)]
        found = best_within(with_usable(problem, usable), pools, solve)
        if (
            found is None
            or found.seconds > best.seconds * (1 + _TRIFLE)
            or len(found.cuts) >= len(chosen.cuts)
        ):
            break
        bound = best.seconds * (1 - best.gap)
        chosen = replace(found, gap=max(0.0, 1 - bound / found.seconds))
    return chosen


def problem_of(request: PlaceRequest, num_sequences: int) -> PathProblem:
    """Return the path problem of steps with so many sequences, without regard to pools."""
    return path_problem(
        request.candidates,
        request.links,
        coordinator=request.coordinator,
        num_sequences=num_sequences,
        context_tokens=request.preferences.context_tokens,
    )


def problems_of(request: PlaceRequest) -> Callable[[int], PathProblem]:
    """Return ``problem_of`` as a function of the number of sequences."""
    return path_problems(
        request.candidates,
        request.links,
        coordinator=request.coordinator,
        context_tokens=request.preferences.context_tokens,
    )


def only_units(request: PlaceRequest, indices: Iterable[int]) -> PlaceRequest:
    """Return the request with some of its candidates only, which stay in their order."""
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


def _cuts_of_layout(request: PlaceRequest) -> tuple[Cut, ...]:
    """Return the stages that the user wants. Raise ``ParameterError`` if they are not possible."""
    layout = request.preferences.layout
    num_layers = request.num_layers
    units = {(each.node_id, each.unit_id): i for i, each in enumerate(request.candidates)}
    total = sum(each.num_layers for each in layout)
    if total != num_layers:
        raise ParameterError(
            "layout", f"the layout has {total} layers, and the model {num_layers}", hint=_LAYOUT
        )
    problem = problem_of(request, 1)
    cuts: list[Cut] = []
    layer = 0
    for index, each in enumerate(layout):
        where = f"{each.unit_id} on node {each.node_id}"
        unit = units.get((each.node_id, each.unit_id))
        if unit is None:
            raise ParameterError(
                "layout", f"{where} cannot be used", hint="potluck ps shows what can, and why not"
            )
        if any(cut.unit == unit for cut in cuts):
            raise ParameterError("layout", f"the layout has {where} twice", hint=_LAYOUT)
        end = layer + each.num_layers
        cut = Cut(
            unit=unit,
            start=0 if index == 0 else layer + 1,
            end=num_layers + 2 if index == len(layout) - 1 else end + 1,
        )
        if index > 0 and layer in request.candidates[unit].cost.no_cuts:
            raise no_such_cut(layer, num_layers, request.candidates[unit].cost.no_cuts)
        if cut.start == cut.end:
            raise ParameterError("layout", f"the layout has no layer for {where}", hint=_LAYOUT)
        needed, usable = problem.bytes_of(cut), request.candidates[unit].usable_bytes
        if needed > usable:
            raise InsufficientMemoryError(
                needed,
                usable,
                f"{each.num_layers} layers take {format_bytes(needed)} on {where}, and "
                f"{format_bytes(max(0, usable))} may be used",
                hint="give it fewer layers in --layout",
            )
        cuts.append(cut)
        layer = end
    return tuple(cuts)
