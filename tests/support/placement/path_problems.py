"""Random path problems, and the best of all answers by trying them all.

Nothing here uses the solver: an answer is judged by the methods of ``PathProblem`` alone.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import combinations, permutations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from potluck.placement.cuts import Cut
from potluck.placement.path import PathProblem

GB = 1 << 30


def random_problem(random: Generator, *, num_units: int, num_layers: int) -> PathProblem:
    """Return a problem of unequal units with asymmetric links; memory is often short."""
    num_items = num_layers + 2
    layer_bytes = random.integers(20, 40) if random.random() < 0.5 else random.integers(10, 60)
    bytes_of_items = np.full(num_items, int(layer_bytes))
    if random.random() < 0.5:
        bytes_of_items = random.integers(10, 60, num_items)
    bytes_of_items[[0, -1]] = random.integers(10, 120, 2)
    is_tied = random.random() < 0.5
    shared = int(min(bytes_of_items[0], bytes_of_items[-1])) if is_tied else 0
    speed = np.exp(random.uniform(-2, 1, num_units))
    work = bytes_of_items * random.uniform(0.8, 1.2, num_items)
    work[0] *= random.uniform(0, 0.2)
    item_seconds = np.outer(speed, work) * random.uniform(0.9, 1.1, (num_units, 1)) * 1e-4
    total = float(bytes_of_items.sum())
    usable = random.uniform(0.1, 1.3 if random.random() < 0.7 else 0.5, num_units) * total
    item_bytes = np.tile(bytes_of_items, (num_units, 1)).astype(np.int64)
    stage_bytes = random.integers(0, 20, num_units).astype(np.int64)
    lone_bytes = item_bytes[:, [0, -1]] + stage_bytes[:, None]
    lone_bytes = (lone_bytes * random.uniform(0.4, 1.0, lone_bytes.shape)).astype(np.int64)
    scale = 10.0 ** random.uniform(-5, -2)
    hops = random.uniform(0.1, 1.0, (num_units + 1, num_units + 1)) * scale
    if random.random() < 0.3:
        hops[:] = scale
    problem = PathProblem(
        usable_bytes=usable.astype(np.int64),
        item_bytes=item_bytes,
        stage_bytes=stage_bytes,
        shared_bytes=np.full(num_units, shared, dtype=np.int64),
        lone_bytes=lone_bytes,
        item_seconds=item_seconds,
        stage_seconds=random.uniform(0, 2e-3, num_units),
        hop_seconds=hops,
        busy_seconds=hops * random.uniform(0.2, 1.0, hops.shape),
        no_cuts=_random_no_cuts(random, num_items),
    )
    return with_twins(problem, random) if random.random() < 0.4 else problem


def _random_no_cuts(random: Generator, num_items: int) -> frozenset[int]:
    """Of most models none, of some up to all."""
    share = random.uniform() if random.random() < 0.3 else 0.0
    return frozenset(item for item in range(1, num_items) if random.random() < share)


def with_twins(problem: PathProblem, random: Generator) -> PathProblem:
    """Return the problem with some units replaced by copies of another, links included."""
    num_units = problem.num_units
    origin = random.integers(0, num_units, num_units)
    ends = np.append(origin, num_units)
    within = np.array([problem.hop_seconds[unit, -1] for unit in range(num_units + 1)])
    hops, busy = (matrix[np.ix_(ends, ends)].copy() for matrix in _links(problem))
    same = ends[:, None] == ends[None, :]
    hops[same] = np.broadcast_to(within[ends][:, None], hops.shape)[same]
    busy[same] = hops[same] / 2
    return PathProblem(
        usable_bytes=problem.usable_bytes[origin],
        item_bytes=problem.item_bytes[origin],
        stage_bytes=problem.stage_bytes[origin],
        shared_bytes=problem.shared_bytes[origin],
        lone_bytes=problem.lone_bytes[origin],
        item_seconds=problem.item_seconds[origin],
        stage_seconds=problem.stage_seconds[origin],
        hop_seconds=hops,
        busy_seconds=busy,
        no_cuts=problem.no_cuts,
    )


def for_sequences(problem: PathProblem, num_sequences: int) -> PathProblem:
    """Return the problem of steps of more sequences: weights are read once, the rest is not."""
    more = 1 + 0.25 * (num_sequences - 1)
    return PathProblem(
        usable_bytes=problem.usable_bytes,
        item_bytes=problem.item_bytes,
        stage_bytes=problem.stage_bytes,
        shared_bytes=problem.shared_bytes,
        lone_bytes=problem.lone_bytes,
        item_seconds=problem.item_seconds * more,
        stage_seconds=problem.stage_seconds * (0.5 + 0.5 * more),
        hop_seconds=problem.hop_seconds + problem.busy_seconds * (num_sequences - 1) * 0.1,
        busy_seconds=problem.busy_seconds * (1 + (num_sequences - 1) * 0.1),
        no_cuts=problem.no_cuts,
    )


def all_answers(problem: PathProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the path seconds and the bottleneck seconds of every answer that fits in memory."""
    num_units, num_items = problem.num_units, problem.num_items
    stage = np.full((num_units, num_items, num_items + 1), math.inf)
    for unit in range(num_units):
        for start, end in combinations(range(num_items + 1), 2):
            if {start, end} & problem.no_cuts:
                continue
            cut = Cut(unit=unit, start=start, end=end)
            if problem.bytes_of(cut) <= problem.usable_bytes[unit]:
                stage[unit, start, end] = problem.seconds_of(cut)
    paths: list[NDArray[np.float64]] = [np.zeros(0)]
    bottlenecks: list[NDArray[np.float64]] = [np.zeros(0)]
    for num_stages in range(1, min(num_units, num_items) + 1):
        ways, bounds = _ways(num_units, num_stages), _bounds(num_items, num_stages)
        hops = ways[:, :-1], ways[:, 1:]
        stages = stage[ways[:, None, 1:-1], bounds[:, :-1], bounds[:, 1:]]
        seconds = stages.sum(axis=2)
        fits = np.isfinite(seconds)
        way = problem.hop_seconds[hops].sum(axis=1)[:, None]
        busiest = problem.busy_seconds[hops].max(axis=1)[:, None]
        paths.append((seconds + way)[fits])
        bottlenecks.append(np.maximum(stages.max(axis=2), busiest)[fits])
    return np.concatenate(paths), np.concatenate(bottlenecks)


@cache
def _ways(num_units: int, num_stages: int) -> NDArray[np.int64]:
    """Return every order of that many units, each between -1 and -1, the outside."""
    orders = permutations(range(num_units), num_stages)
    return np.array([(-1, *units, -1) for units in orders])


@cache
def _bounds(num_items: int, num_stages: int) -> NDArray[np.int64]:
    """Return every way to cut the items, with the first and the last bound."""
    inner = combinations(range(1, num_items), num_stages - 1)
    return np.array([(0, *cuts, num_items) for cuts in inner])


def random_answers(
    problem: PathProblem, random: Generator, *, num_answers: int
) -> list[tuple[Cut, ...]]:
    """Return random answers that fit in memory, fewer if most attempts fail.

    Units come in a random order; each takes a random part of what it can hold, and half of the
    attempts prefer units that are fast.
    """
    answers: list[tuple[Cut, ...]] = []
    num_items = problem.num_items
    speed = problem.item_seconds.sum(axis=1)
    ends = [_fitting_ends(problem, unit) for unit in range(problem.num_units)]
    for attempt in range(4 * num_answers):
        if len(answers) == num_answers:
            break
        weights = random.random(problem.num_units) * (speed if attempt % 2 else 1)
        keeps = random.choice([0.0, 0.8, 1.0])
        start, cuts = 0, []
        for unit in np.argsort(weights):
            fitting = ends[unit][start]
            if fitting:
                end = fitting[-1] if random.random() < keeps else int(random.choice(fitting))
                cuts.append(Cut(unit=int(unit), start=start, end=end))
                start = end
            if start == num_items:
                answers.append(tuple(cuts))
                break
    return answers


def _fitting_ends(problem: PathProblem, unit: int) -> list[list[int]]:
    num_items, usable = problem.num_items, problem.usable_bytes[unit]
    return [
        [
            end
            for end in range(start + 1, num_items + 1)
            if end not in problem.no_cuts
            and problem.bytes_of(Cut(unit=unit, start=start, end=end)) <= usable
        ]
        for start in range(num_items)
    ]


def fleet_problem(
    random: Generator,
    *,
    num_units: int,
    num_layers: int,
    part: tuple[float, float],
    links: str,
) -> PathProblem:
    """Return a problem like that of a real fleet.

    Each unit may use between two parts of the model's bytes; speeds are log-normal. ``links`` are
    "equal", "unequal" (tenths of a millisecond to three), or in four "sites" 5 ms apart.
    """
    num_items = num_layers + 2
    bytes_of_items = np.full(num_items, 100)
    bytes_of_items[[0, -1]] = 150
    usable = random.uniform(*part, num_units) * bytes_of_items.sum()
    item_seconds = np.outer(np.exp(random.normal(0, 0.7, num_units)), bytes_of_items) * 1e-5
    item_seconds[:, 0] *= 0.01
    shape = (num_units + 1, num_units + 1)
    hops = np.full(shape, 3e-4)
    if links == "unequal":
        hops = 10 ** random.uniform(-4, -2.5, shape)
    elif links == "sites":
        site = random.integers(0, 4, num_units + 1)
        hops = np.where(site[:, None] == site[None, :], 2e-4, 5e-3)
        hops *= random.uniform(0.9, 1.1, shape)
    none = np.zeros(num_units, dtype=np.int64)
    return PathProblem(
        usable_bytes=usable.astype(np.int64),
        item_bytes=np.tile(bytes_of_items, (num_units, 1)).astype(np.int64),
        stage_bytes=none + 20,
        shared_bytes=none,
        lone_bytes=np.tile(bytes_of_items[[0, -1]] + 10, (num_units, 1)).astype(np.int64),
        item_seconds=item_seconds,
        stage_seconds=np.full(num_units, 1e-4),
        hop_seconds=hops,
        busy_seconds=hops * 0.3,
    )


def _links(problem: PathProblem) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return problem.hop_seconds, problem.busy_seconds
