from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.placement.path_problems import random_problem

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem
from potluck.placement.unit_addition import best_additions


def random_cuts(random: np.random.Generator, num_units: int, num_items: int) -> list[Cut]:
    num_stages = int(random.integers(1, min(num_units, num_items)))
    order = random.permutation(num_units)[:num_stages]
    inner = np.sort(random.permutation(np.arange(1, num_items))[: num_stages - 1])
    bounds = [0, *inner.tolist(), num_items]
    return [
        Cut(unit=int(unit), start=start, end=end)
        for unit, start, end in zip(order, bounds, bounds[1:], strict=False)
    ]


def plans_with(cuts: list[Cut], unit: int, num_items: int) -> Iterator[tuple[Cut, tuple[Cut, ...]]]:
    """Every part for ``unit`` around one boundary, and what becomes of the plan."""
    for position in range(len(cuts) + 1):
        boundary = cuts[position].start if position < len(cuts) else num_items
        first = cuts[position - 1].start if position else boundary
        last = cuts[position].end if position < len(cuts) else boundary
        for start in range(first, boundary + 1):
            for end in range(boundary, last + 1):
                if max(start, 1) >= min(end, num_items - 1):
                    continue  # no layer
                stages = list(cuts)
                if position < len(cuts):
                    stages[position] = Cut(unit=cuts[position].unit, start=end, end=last)
                if position:
                    left = cuts[position - 1]
                    stages[position - 1] = Cut(unit=left.unit, start=left.start, end=start)
                part = Cut(unit=unit, start=start, end=end)
                stages.insert(position, part)
                yield part, tuple(stage for stage in stages if stage.start < stage.end)


@pytest.mark.parametrize("seed", range(60))
def test_the_best_part_is_found(seed: int) -> None:
    random = np.random.default_rng(seed)
    num_units = int(random.integers(2, 6))
    problem = random_problem(random, num_units=num_units, num_layers=int(random.integers(1, 7)))
    num_units = problem.num_units
    loaded = random_problem(random, num_units=num_units, num_layers=problem.num_items - 2)
    in_flight = int(random.integers(1, 4))
    cuts = random_cuts(random, num_units, problem.num_items)
    unused = [unit for unit in range(num_units) if unit not in {cut.unit for cut in cuts}]
    usable = [int(each) for each in problem.usable_bytes]
    found = best_additions(
        problem, (loaded, in_flight), cuts, {unit: usable[unit] for unit in unused}
    )
    assert list(found) == unused
    base = problem.path_seconds(tuple(cuts))
    for unit in unused:
        fitting = [
            stages
            for part, stages in plans_with(cuts, unit, problem.num_items)
            if problem.bytes_of(part) <= usable[unit]
            and not problem.no_cuts & {part.start, part.end}
        ]
        best = found[unit]
        if best is None:
            assert not fitting
            continue
        assert best.added_seconds == pytest.approx(
            min(problem.path_seconds(stages) for stages in fitting) - base, abs=1e-12
        )
        assert best.period_seconds == pytest.approx(
            min(
                max(loaded.path_seconds(stages), in_flight * loaded.bottleneck_seconds(stages))
                for stages in fitting
            )
        )


def test_many_units_are_looked_at_in_turn() -> None:
    random = np.random.default_rng(1)
    problem: PathProblem = random_problem(random, num_units=90, num_layers=30)
    cuts = [Cut(unit=0, start=0, end=10), Cut(unit=1, start=10, end=32)]
    units = list(range(2, problem.num_units))
    usable = [int(each) for each in problem.usable_bytes]
    found = best_additions(problem, (problem, 2), cuts, {unit: usable[unit] for unit in units})
    assert list(found) == units
    alone = best_additions(problem, (problem, 2), cuts, {77: usable[77]})
    assert alone[77] == found[77]
