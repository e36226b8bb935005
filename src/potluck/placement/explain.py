"""Why a plan is as it is: what its unused units would add, and what one unit more or less changes.

Pure. The alternatives are plans of the same model on other sets of units, made as the plan was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from potluck.errors import PotluckError
from potluck.placement.candidates import Candidate
from potluck.placement.cuts import Cut, cut_of
from potluck.placement.links import LinkTable
from potluck.placement.partaking import Partaking, least_partakings
from potluck.placement.path import PathProblem
from potluck.placement.place import only_units, place, problem_of
from potluck.placement.request import PlaceRequest
from potluck.placement.side_by_side import Pipeline, side_by_side
from potluck.placement.solver.budget import DEFAULT_ELEMENTS
from potluck.quantities import format_bytes, format_percent, format_seconds
from potluck.types.cluster import NodeId, UnitId
from potluck.types.placement import (
    ModelCost,
    Objective,
    PlacedStage,
    Plan,
    Prediction,
    Preferences,
    Rejection,
)

ADDED_NODE = NodeId("another-unit")
"""Of the unit that no cluster has; not the form of an id."""

_NUM_LEFT_OUT = 8
"""How many units are tried to be done without, those with the fewest layers first; half as many
where there are more than ``_MOST_CANDIDATES``."""
_ELEMENTS = DEFAULT_ELEMENTS // _NUM_LEFT_OUT
"""For the search of an alternative: all of them together take about as long as the plan."""
_MOST_CANDIDATES = 64
"""With more, another unit is looked at beside those that are used only."""
_NEGLIGIBLE = 0.0005
"""A change by a smaller part is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another plan, on one unit fewer or one more.

    ``node_id`` and ``unit_id`` name the unit that it goes without, or the one that the added unit
    is like. Stages on the latter are on ``ADDED_NODE``.
    """

    node_id: NodeId
    unit_id: UnitId
    stages: tuple[PlacedStage, ...]
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What there is to say about a plan.

    ``rejections`` are the candidates that it does not use, with the reasons. ``added_seconds`` says
    of those that could take part how much longer a token would take if they did. The alternatives
    are None where there is none. ``side_by_side`` are several pipelines that would serve more
    tokens per second than the plan; nothing deploys them by itself.
    """

    rejections: tuple[Rejection, ...]
    added_seconds: Mapping[tuple[NodeId, UnitId], float] = field(default_factory=dict)
    one_unit_fewer: Alternative | None = None
    one_unit_more: Alternative | None = None
    side_by_side: tuple[Pipeline, ...] = ()


def explain(request: PlaceRequest, plan: Plan) -> Explanation:
    """Return why ``plan`` is what ``place`` made of ``request``, with its alternatives.

    It takes about as long as ``place`` two or three times more; of a thousand units, as
    ``side_by_side`` takes. There are no alternatives to a layout, nor to a plan for memory.
    """
    unused = unused_units(request, plan)
    if request.preferences.layout or request.preferences.objective is Objective.MEMORY:
        return unused
    return replace(
        unused,
        one_unit_fewer=_one_unit_fewer(request, plan),
        one_unit_more=_one_unit_more(request, plan),
        side_by_side=side_by_side(request, plan),
    )


def unused_units(request: PlaceRequest, plan: Plan) -> Explanation:
    """Return why each candidate without a stage has none, and no alternatives.

    What a unit would change is what the plan would be like if the unit took some of the layers of
    two neighbouring stages, or the place of one stage, whichever is best.
    """
    used = {(stage.node_id, stage.unit_id) for stage in plan.stages}
    unused = [
        index
        for index, each in enumerate(request.candidates)
        if (each.node_id, each.unit_id) not in used
    ]
    if not unused or plan.prediction is None:
        return Explanation(rejections=())
    if request.preferences.layout:
        return Explanation(
            rejections=tuple(
                _rejection(request.candidates[index], "it is not in the layout") for index in unused
            )
        )
    prediction = plan.prediction
    usable = _usable(request, plan)
    least = least_partakings(
        problem_of(request, 1),
        _loaded_problem(request, prediction),
        _cuts(request, plan),
        unused,
        usable,
    )

    def reason(index: int) -> str:
        partaking = least[index]
        if partaking is None:
            return _too_small(usable[index], request.candidates[index].cost)
        return _reason(partaking, prediction, request.preferences)

    added = {
        _unit(request.candidates[index]): partaking.added_seconds
        for index, partaking in least.items()
        if partaking is not None
    }
    return Explanation(
        rejections=tuple(_rejection(request.candidates[index], reason(index)) for index in unused),
        added_seconds=added,
    )


def _too_small(usable_bytes: int, cost: ModelCost) -> str:
    layer_bytes = cost.least_layer_bytes + cost.scratch_bytes + cost.process_bytes
    if usable_bytes >= layer_bytes:  # and that layer is in the middle of a stage
        return f"no part next to a stage fits in the {format_bytes(usable_bytes)} that may be used"
    return (
        f"{format_bytes(max(0, usable_bytes))} may be used, and one layer takes "
        f"{format_bytes(layer_bytes)}"
    )


def _reason(partaking: Partaking, prediction: Prediction, preferences: Preferences) -> str:
    """Return why a unit is unused, in words."""
    if preferences.objective is Objective.THROUGHPUT:
        rate = prediction.num_streams / partaking.period_seconds
        lost = 1 - rate / prediction.total_tokens_per_second
        if lost <= _NEGLIGIBLE:
            return f"would not raise the rate of {prediction.num_streams} streams"
        return f"would lower the rate of {prediction.num_streams} streams by {format_percent(lost)}"
    if preferences.objective is Objective.MEMORY:
        return "the model fits on the others"
    if partaking.added_seconds <= _NEGLIGIBLE * prediction.token_seconds:
        return "would not make a token faster"
    return f"would add {format_seconds(partaking.added_seconds)} per token"


def _loaded_problem(request: PlaceRequest, prediction: Prediction) -> tuple[PathProblem, int]:
    """Return the problem of a step as it is when all streams decode, and how many are in flight."""
    in_flight = prediction.steps_in_flight
    return problem_of(request, -(-prediction.num_streams // in_flight)), in_flight


def _one_unit_fewer(request: PlaceRequest, plan: Plan) -> Alternative | None:
    """Return the best plan without one of the units that are used.

    It is made of the others that are used. Where the model does not fit on these, or there is no
    other, all other units count.
    """
    used = {(stage.node_id, stage.unit_id) for stage in plan.stages}
    fewest_first = sorted(
        plan.stages, key=lambda stage: stage.shard.end_layer - stage.shard.start_layer
    )
    most = _NUM_LEFT_OUT if len(request.candidates) <= _MOST_CANDIDATES else _NUM_LEFT_OUT // 2
    left_out = [(stage.node_id, stage.unit_id) for stage in fewest_first[:most]]
    for among in (used, {_unit(each) for each in request.candidates}):
        found = [
            Alternative(
                node_id=unit[0], unit_id=unit[1], stages=other.stages, prediction=other.prediction
            )
            for unit in left_out
            if (other := _place_on(request, among - {unit})) is not None
            and other.prediction is not None
        ]
        if found:
            return min(found, key=lambda each: _badness(each.prediction, request.preferences))
    return None


def _one_unit_more(request: PlaceRequest, plan: Plan) -> Alternative | None:
    """Return the best plan if there were another unit like the fastest, on a machine of its own."""
    fastest = _fastest(request)
    twin = replace(fastest, node_id=ADDED_NODE)
    if len(request.candidates) > _MOST_CANDIDATES:
        request = _only(request, {(stage.node_id, stage.unit_id) for stage in plan.stages})
    more = replace(
        request,
        candidates=(*request.candidates, twin),
        links=_with_twin(request.links, fastest.node_id),
    )
    other = _place_or_none(more)
    if other is None or other.prediction is None or plan.prediction is None:
        return None
    found = Alternative(
        node_id=fastest.node_id,
        unit_id=fastest.unit_id,
        stages=other.stages,
        prediction=other.prediction,
    )
    preferences = request.preferences
    least = (1 - _NEGLIGIBLE) * _badness(plan.prediction, preferences)
    if _badness(other.prediction, preferences) > least:
        return replace(found, stages=plan.stages, prediction=plan.prediction)
    return found


def _fastest(request: PlaceRequest) -> Candidate:
    """Return the unit that takes least for the layers of a step of one sequence."""
    seconds = problem_of(request, 1).item_seconds[:, 1:-1].sum(axis=1)
    return request.candidates[int(seconds.argmin())]


def _with_twin(links: LinkTable, like: NodeId) -> LinkTable:
    """Return the links of a cluster with another node that is linked as ``like`` is.

    The link between the two is that of ``like`` to the nearest other machine.
    """
    own = {pair: link for pair, link in links.links.items() if like in pair and pair[0] != pair[1]}
    added = {
        (ADDED_NODE, target) if source == like else (source, ADDED_NODE): link
        for (source, target), link in own.items()
    }
    host_id = links.host_ids.get(like)
    far = [
        link
        for pair, link in own.items()
        for other in pair
        if other != like and (host_id is None or links.host_ids.get(other) != host_id)
    ]
    between = min(far, key=lambda link: link.hop_seconds(0), default=links.network)
    added[ADDED_NODE, like] = added[like, ADDED_NODE] = between
    return replace(
        links,
        links={**links.links, **added},
        host_ids={**links.host_ids, ADDED_NODE: str(ADDED_NODE)},
    )


def _place_on(request: PlaceRequest, units: set[tuple[NodeId, UnitId]]) -> Plan | None:
    return _place_or_none(_only(request, units)) if units else None


def _place_or_none(request: PlaceRequest) -> Plan | None:
    try:
        return place(request, num_elements=_ELEMENTS)
    except PotluckError:
        return None


def _only(request: PlaceRequest, units: set[tuple[NodeId, UnitId]]) -> PlaceRequest:
    """Return the request with some of its candidates only."""
    return only_units(
        request, (index for index, each in enumerate(request.candidates) if _unit(each) in units)
    )


def _usable(request: PlaceRequest, plan: Plan) -> list[int]:
    """Return what each candidate may use beside the stages of the plan."""
    taken: Counter[tuple[NodeId, UnitId]] = Counter()
    for stage in plan.stages:  # a plan that keeps what is held may have several on a unit
        taken[stage.node_id, stage.unit_id] += stage.num_bytes
    usable = [each.usable_bytes for each in request.candidates]
    for pool in request.pools:
        used = sum(taken[_unit(request.candidates[index])] for index in pool.members)
        for index in pool.members:
            own = taken[_unit(request.candidates[index])]
            usable[index] = min(usable[index], pool.left_bytes - (used - own))
    return usable


def _cuts(request: PlaceRequest, plan: Plan) -> Sequence[Cut]:
    indices = {_unit(each): index for index, each in enumerate(request.candidates)}
    return [cut_of(indices[stage.node_id, stage.unit_id], stage.shard) for stage in plan.stages]


def _badness(prediction: Prediction, preferences: Preferences) -> float:
    """Return what the best plan has the least of."""
    if preferences.objective is Objective.THROUGHPUT:
        return 1 / prediction.total_tokens_per_second
    return prediction.token_seconds


def _unit(candidate: Candidate) -> tuple[NodeId, UnitId]:
    return candidate.node_id, candidate.unit_id


def _rejection(candidate: Candidate, reason: str) -> Rejection:
    return Rejection(node_id=candidate.node_id, unit_id=candidate.unit_id, reason=reason)
