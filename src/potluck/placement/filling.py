"""Fill gaps between kept stages with the fastest new stages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from potluck.placement.candidates import PlaceRequest
from potluck.placement.cuts import Cut
from potluck.placement.path import Floats, PathProblem
from potluck.placement.place import placed_stages, problem_of
from potluck.placement.solver import shortest_path
from potluck.placement.stage_reuse import Fill, Gap
from potluck.types.cluster import NodeUnitId
from potluck.types.placement import PlacedStage


def fill_by_speed(request: PlaceRequest) -> Fill:
    """Return a function that fills gaps such that a step of one sequence takes the least time.

    A candidate may get a stage even if it has one. Raise ``ValueError`` if there is none.
    """
    problem = problem_of(request, 1)
    index = {each.unit: number for number, each in enumerate(request.candidates)}

    def fill(gap: Gap) -> list[PlacedStage] | None:
        usable = [gap.left[unit].usable_bytes if unit in gap.left else 0 for unit in index]
        path = shortest_path(_part(problem, gap, index, usable))
        if path is None:
            return None
        cuts = [
            Cut(unit=cut.unit, start=gap.start + cut.start, end=gap.start + cut.end)
            for cut in path.cuts
        ]
        return list(placed_stages(request, cuts))

    return fill


def _part(
    problem: PathProblem, gap: Gap, index: Mapping[NodeUnitId, int], usable: Sequence[int]
) -> PathProblem:
    """Return the problem of the gap's items; its source and sink are the stages around the gap.

    A stage kept on a unit that is not offered is assumed to be on the coordinator.
    """
    before = -1 if gap.before is None else index.get(gap.before, -1)
    after = -1 if gap.after is None else index.get(gap.after, -1)
    items = slice(gap.start, gap.end)
    # An end without layers takes less than its parts, but only at an end of the model.
    alone = problem.item_bytes[:, [gap.start, gap.end - 1]] + problem.stage_bytes[:, None]
    if gap.start == 0:
        alone[:, 0] = problem.lone_bytes[:, 0]
    if gap.end == problem.num_items:
        alone[:, 1] = problem.lone_bytes[:, 1]
    is_whole = gap.end - gap.start == problem.num_items
    return replace(
        problem,
        usable_bytes=np.array(usable, dtype=np.int64),
        item_bytes=problem.item_bytes[:, items],
        item_seconds=problem.item_seconds[:, items],
        shared_bytes=problem.shared_bytes if is_whole else np.zeros_like(problem.shared_bytes),
        lone_bytes=alone,
        hop_seconds=_between(problem.hop_seconds, before, after),
        busy_seconds=_between(problem.busy_seconds, before, after),
        no_cuts=frozenset(
            item - gap.start for item in problem.no_cuts if gap.start < item < gap.end
        ),
    )


def _between(hops: Floats, before: int, after: int) -> Floats:
    """Return hops whose source and sink are the stages before and after."""
    between = hops.copy()
    between[-1, :] = hops[before, :]
    between[:, -1] = hops[:, after]
    between[-1, -1] = hops[before, after]
    return between
