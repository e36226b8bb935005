"""Paths over units of which several draw on the same memory.

The solver takes one limit for each unit. Memory that several units share, such as that of a CPU and
an integrated GPU, or of several agents on one machine, is divided here: first every unit may use
all of it, and less is tried only if a path then takes more than there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from potluck.placement.cuts import Cut
from potluck.placement.offering import Pool, fair_shares
from potluck.placement.path import Path, PathProblem


def best_within(
    problem: PathProblem,
    pools: Sequence[Pool],
    solve: Callable[[Sequence[int]], Path | None],
) -> Path | None:
    """Return the best answer of ``solve`` that respects all pools.

    ``solve`` is given what every unit may use, and returns None if there is no path. Members of
    pools are indices of units. The answer is the best of those that were tried, and optimal if no
    pool is short. A pool that is short is divided fairly among its members, or among those that the
    path used, or left to all but one of these.
    """
    alone = [int(each) for each in problem.usable_bytes]
    found = solve(alone)
    if found is None or fits(problem, pools, found.cuts):
        return found
    best: Path | None = None
    for usable in _divisions(problem, pools, found.cuts, alone):
        other = solve(usable)
        if other is None or not fits(problem, pools, other.cuts):
            continue
        if best is None or other.seconds < best.seconds:
            best = other
    return best


def fits(problem: PathProblem, pools: Sequence[Pool], cuts: Sequence[Cut]) -> bool:
    """Return whether stages on different units respect all pools."""
    return not _short(problem, pools, cuts)


def _short(problem: PathProblem, pools: Sequence[Pool], cuts: Sequence[Cut]) -> list[Pool]:
    """Return the pools that a path overdraws."""
    taken = {cut.unit: problem.bytes_of(cut) for cut in cuts}
    return [
        pool
        for pool in pools
        if sum(taken.get(unit, 0) for unit in pool.members) > max(0, pool.left_bytes)
    ]


def _divisions(
    problem: PathProblem, pools: Sequence[Pool], cuts: Sequence[Cut], alone: Sequence[int]
) -> Iterator[list[int]]:
    yield fair_shares(alone, pools)
    used = {cut.unit for cut in cuts}
    contested = {
        unit for pool in _short(problem, pools, cuts) for unit in pool.members if unit in used
    }
    idle = {unit for pool in pools for unit in pool.members} - used
    yield fair_shares(_without(alone, idle), pools)
    for unit in sorted(contested):
        others = [Pool(left_bytes=pool.left_bytes, members=pool.members - {unit}) for pool in pools]
        yield fair_shares(_without(alone, {unit}), others)
        yield fair_shares(_without(alone, {*idle, unit}), others)
        # One of them alone may be faster than any two.
        yield _without(alone, contested - {unit})


def _without(usable: Sequence[int], units: set[int]) -> list[int]:
    return [0 if unit in units else each for unit, each in enumerate(usable)]


def with_usable(problem: PathProblem, usable: Sequence[int]) -> PathProblem:
    """Return the problem with different limits for units."""
    return replace(problem, usable_bytes=np.array(usable, dtype=np.int64))
