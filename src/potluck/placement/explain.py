"""Explain a plan: what its unused units would add, and how one unit more or less changes it.

Pure. The alternatives are plans for the same model on other sets of units, made in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from potluck.errors import PotluckError
from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.group_search import MOST_MEMBERS, GroupSearch
from potluck.placement.grouping import GroupedRequest, arranged, has_room, with_groups
from potluck.placement.links import LinkTable
from potluck.placement.path import PathProblem
from potluck.placement.place import only_units, place, place_in_groups, problem_of
from potluck.placement.prediction import predict
from potluck.placement.side_by_side import Pipeline, side_by_side
from potluck.placement.solver.table import DEFAULT_ELEMENTS
from potluck.placement.unit_addition import UnitAddition, best_additions
from potluck.types.choices import Objective
from potluck.types.cluster import NodeId, NodeUnitId, UnitId
from potluck.types.placement import ModelCost, Plan, Prediction, Preferences, Rejection
from potluck.types.quantities import format_bytes, format_percent, format_seconds

ADDED_NODE = NodeId("another-unit")
"""The node of a hypothetical additional unit; it does not have the form of a node id."""

_NUM_LEFT_OUT = 8
"""How many units to try leaving out, those with the fewest layers first; half as many if there are
more than ``_MOST_CANDIDATES`` candidates."""
_ELEMENTS = DEFAULT_ELEMENTS // _NUM_LEFT_OUT
"""The search budget of each alternative: all of them together take about as long as the plan."""
_MOST_CANDIDATES = 64
"""With more candidates, the effect of an additional unit is only computed for the units in use."""
_NEGLIGIBLE = 0.0005
"""A smaller relative change is reported as no change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative(Pipeline):
    """Another plan, on one unit fewer or one more.

    ``node_id`` and ``unit_id`` name the unit that is left out, or the unit that the additional one
    resembles. Stages on the additional unit are on ``ADDED_NODE``.
    """

    node_id: NodeId
    unit_id: UnitId

    @classmethod
    def of(cls, unit: NodeUnitId, other: Pipeline) -> Alternative:
        """Return ``other`` as an alternative that is named after a unit."""
        node_id, unit_id = unit
        return cls(
            node_id=node_id, unit_id=unit_id, stages=other.stages, prediction=other.prediction
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of a plan.

    ``rejections`` are the candidates that the plan does not use, with the reasons.
    ``added_seconds`` says, for each of those that could take part, how much longer a token would
    take if it did. An alternative is None if there is none. ``side_by_side`` are several pipelines
    that would serve more tokens per second than the plan; they are never deployed automatically.
    ``in_groups`` is the best plan with groups if the plan has none although it could, and
    ``without_groups`` the best plan without groups if it has some.
    """

    rejections: tuple[Rejection, ...]
    added_seconds: Mapping[NodeUnitId, float] = field(default_factory=dict)
    one_unit_fewer: Alternative | None = None
    one_unit_more: Alternative | None = None
    side_by_side: tuple[Pipeline, ...] = ()
    in_groups: Pipeline | None = None
    without_groups: Pipeline | None = None


def explain(request: PlaceRequest, plan: Plan) -> Explanation:
    """Return why ``plan`` is the result of ``place`` for ``request``, with its alternatives.

    This takes two to three times as long as ``place``; with a thousand units, as long as
    ``side_by_side``. There are no alternatives to a layout or to a plan made for memory.
    """
    unused = unused_units(request, plan)
    if request.preferences.layout or request.preferences.objective is Objective.MEMORY:
        return unused
    return replace(
        unused,
        one_unit_fewer=_one_unit_fewer(request, plan),
        one_unit_more=_one_unit_more(request, plan),
        side_by_side=side_by_side(request, plan),
        in_groups=_in_groups(request, plan),
        without_groups=_without_groups(request, plan),
    )


def _has_groups(plan: Plan) -> bool:
    return any(stage.shard.part is not None for stage in plan.stages)


def _in_groups(request: PlaceRequest, plan: Plan) -> Pipeline | None:
    if _has_groups(plan) or request.preferences.tensor_parallel is not None:
        return None
    return _other(place_in_groups(request, plan, num_elements=_ELEMENTS))


def _without_groups(request: PlaceRequest, plan: Plan) -> Pipeline | None:
    if not _has_groups(plan):
        return None
    alone = replace(request.preferences, tensor_parallel=1)
    return _place_or_none(replace(request, preferences=alone))


def _other(plan: Plan | None) -> Pipeline | None:
    if plan is None or plan.prediction is None:
        return None
    return Pipeline(stages=plan.stages, prediction=plan.prediction)


def unused_units(request: PlaceRequest, plan: Plan) -> Explanation:
    """Return why each candidate without a stage has none, without alternatives.

    The effect of a unit is computed from the best plan in which it takes some of the layers of two
    neighbouring stages, or replaces one stage.
    """
    used = {stage.unit for stage in plan.stages}
    unused = [index for index, each in enumerate(request.candidates) if each.unit not in used]
    if not unused or plan.prediction is None:
        return Explanation(rejections=())
    if request.preferences.layout:
        return Explanation(
            rejections=tuple(
                Rejection.of(request.candidates[index], "not in the layout") for index in unused
            )
        )
    prediction = plan.prediction
    usable = _usable(request, plan)
    # Groups become candidates of their own; units without a stage keep their order.
    found = arranged(request, plan.stages)
    places = {each.unit: index for index, each in enumerate(found.request.candidates)}
    own = {index: places[request.candidates[index].unit] for index in unused}
    additions = best_additions(
        problem_of(found.request, 1),
        _loaded_problem(found.request, prediction),
        found.cuts,
        {place: usable[index] for index, place in own.items()},
    )
    least = {index: additions[place] for index, place in own.items()}
    if found.groups:
        least = _with_joining(request, found, least)

    def reason(index: int) -> str:
        addition = least[index]
        if addition is None:
            return _too_small(usable[index], request.candidates[index].cost)
        return _reason(addition, prediction, request.preferences)

    added = {
        request.candidates[index].unit: addition.added_seconds
        for index, addition in least.items()
        if addition is not None
    }
    return Explanation(
        rejections=tuple(
            Rejection.of(request.candidates[index], reason(index)) for index in unused
        ),
        added_seconds=added,
    )


def _with_joining(
    request: PlaceRequest, found: GroupedRequest, additions: Mapping[int, UnitAddition | None]
) -> dict[int, UnitAddition | None]:
    """Return the best that each unit could contribute to a plan, with a stage or as a group
    member.
    """
    search = GroupSearch.of(request, problem_of(request, 1))
    of_kind: dict[int, list[UnitAddition]] = {}
    best: dict[int, UnitAddition | None] = {}
    for index, addition in additions.items():
        options = [] if addition is None else [addition]
        if index in search.kinds:
            kind = search.kinds[index]
            if kind not in of_kind:
                of_kind[kind] = list(_joining(request, found, index, search))
            options += of_kind[kind]
        best[index] = (
            UnitAddition(
                added_seconds=min(each.added_seconds for each in options),
                period_seconds=min(each.period_seconds for each in options),
            )
            if options
            else None
        )
    return best


def _joining(
    request: PlaceRequest, found: GroupedRequest, index: int, search: GroupSearch
) -> Iterator[UnitAddition]:
    """Yield the effect of one more member on each group of a plan, which keeps its layers."""
    before = predict(found.request, found.cuts)
    for number, group in enumerate(found.groups):
        if len(group.members) >= MOST_MEMBERS:
            continue
        larger = search.groups([(*group.members, index)])
        if not larger:
            continue
        groups = (*found.groups[:number], *larger, *found.groups[number + 1 :])
        other = with_groups(request, groups)
        places = {each.unit: index for index, each in enumerate(other.candidates)}
        cuts = [
            cut
            if cut.unit < len(groups)
            else replace(cut, unit=places[found.request.candidates[cut.unit].unit])
            for cut in found.cuts
        ]
        if all(has_room(other.candidates[cut.unit], cut) for cut in cuts):
            after = predict(other, cuts)
            yield UnitAddition(
                added_seconds=after.token_seconds - before.token_seconds,
                period_seconds=after.num_streams / after.total_tokens_per_second,
            )


def _too_small(usable_bytes: int, cost: ModelCost) -> str:
    layer_bytes = cost.least_layer_bytes + cost.stage_bytes
    if usable_bytes >= layer_bytes:  # the layer is in the middle of a stage
        return (
            f"no part of the model fits next to a stage in the {format_bytes(usable_bytes)} "
            "of usable memory"
        )
    return (
        f"{format_bytes(max(0, usable_bytes))} usable, but one layer needs "
        f"{format_bytes(layer_bytes)}"
    )


def _reason(addition: UnitAddition, prediction: Prediction, preferences: Preferences) -> str:
    """Return the reason why a unit is unused, as text."""
    if preferences.objective is Objective.THROUGHPUT:
        rate = prediction.num_streams / addition.period_seconds
        lost = 1 - rate / prediction.total_tokens_per_second
        if lost <= _NEGLIGIBLE:
            return f"would not increase the throughput of {prediction.num_streams} streams"
        return (
            f"would reduce the throughput of {prediction.num_streams} streams by "
            f"{format_percent(lost)}"
        )
    if preferences.objective is Objective.MEMORY:
        return "not needed: the model fits on the other units"
    if addition.added_seconds <= _NEGLIGIBLE * prediction.token_seconds:
        return "would not reduce the time per token"
    return f"would add {format_seconds(addition.added_seconds)} per token"


def _loaded_problem(request: PlaceRequest, prediction: Prediction) -> tuple[PathProblem, int]:
    """Return the problem of a step when all streams decode, and the number of steps in flight."""
    in_flight = prediction.steps_in_flight
    return problem_of(request, -(-prediction.num_streams // in_flight)), in_flight


def _one_unit_fewer(request: PlaceRequest, plan: Plan) -> Alternative | None:
    """Return the best plan that leaves out one of the units in use.

    It is made from the other units in use. If the model does not fit on these, or there are none,
    all other units are considered.
    """
    used = {stage.unit for stage in plan.stages}
    fewest_first = sorted(
        plan.stages, key=lambda stage: stage.shard.end_layer - stage.shard.start_layer
    )
    most = _NUM_LEFT_OUT if len(request.candidates) <= _MOST_CANDIDATES else _NUM_LEFT_OUT // 2
    left_out = [stage.unit for stage in fewest_first[:most]]
    for among in (used, {each.unit for each in request.candidates}):
        found = [
            Alternative.of(unit, other)
            for unit in left_out
            if (other := _place_or_none(_only(request, among - {unit}))) is not None
        ]
        if found:
            return min(found, key=lambda each: _minimized(each.prediction, request.preferences))
    return None


def _one_unit_more(request: PlaceRequest, plan: Plan) -> Alternative | None:
    """Return the best plan if there were another unit like the fastest, on a machine of its own."""
    fastest = _fastest(request)
    twin = replace(fastest, node_id=ADDED_NODE)
    if len(request.candidates) > _MOST_CANDIDATES:
        request = _only(request, {stage.unit for stage in plan.stages})
    more = replace(
        request,
        candidates=(*request.candidates, twin),
        links=_with_twin(request.links, fastest.node_id),
    )
    other = _place_or_none(more)
    if other is None or plan.prediction is None:
        return None
    preferences = request.preferences
    least = (1 - _NEGLIGIBLE) * _minimized(plan.prediction, preferences)
    if _minimized(other.prediction, preferences) > least:
        other = Pipeline(stages=plan.stages, prediction=plan.prediction)
    return Alternative.of(fastest.unit, other)


def _fastest(request: PlaceRequest) -> Candidate:
    """Return the unit that is fastest at the layers of a step of one sequence."""
    seconds = problem_of(request, 1).item_seconds[:, 1:-1].sum(axis=1)
    return request.candidates[int(seconds.argmin())]


def _with_twin(links: LinkTable, like: NodeId) -> LinkTable:
    """Return the links of a cluster with an additional node that is connected like ``like``.

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


def _place_or_none(request: PlaceRequest) -> Pipeline | None:
    try:
        return _other(place(request, num_elements=_ELEMENTS))
    except PotluckError:
        return None


def _only(request: PlaceRequest, units: set[NodeUnitId]) -> PlaceRequest:
    """Return the request with only some of its candidates."""
    return only_units(
        request, (index for index, each in enumerate(request.candidates) if each.unit in units)
    )


def _usable(request: PlaceRequest, plan: Plan) -> list[int]:
    """Return the memory that each candidate may use in addition to the stages of the plan."""
    taken: Counter[NodeUnitId] = Counter()
    for stage in plan.stages:  # a plan that keeps held stages may have several on one unit
        taken[stage.unit] += stage.num_bytes
    usable = [each.usable_bytes for each in request.candidates]
    for pool in request.pools:
        used = sum(taken[request.candidates[index].unit] for index in pool.members)
        for index in pool.members:
            own = taken[request.candidates[index].unit]
            usable[index] = min(usable[index], pool.left_bytes - (used - own))
    return usable


def _minimized(prediction: Prediction, preferences: Preferences) -> float:
    """Return the value that the best plan minimizes."""
    if preferences.objective is Objective.THROUGHPUT:
        return 1 / prediction.total_tokens_per_second
    return prediction.token_seconds
