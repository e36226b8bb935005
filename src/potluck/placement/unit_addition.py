"""The cost of adding a unit to a plan. Pure.

The stages of the plan keep their order. The unit takes items from the end of one stage and the
start of the next (or from one stage at the ends of the pipeline), at least one layer; a stage that
loses all of its items is removed. The best of these choices is found exactly; other rearrangements
are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from potluck.placement.cuts import Cut
from potluck.placement.path import Bytes, Floats, PathProblem

_Numbers = TypeVar("_Numbers", Bytes, Floats)

_CHUNK_UNITS = 32
"""Units processed together: the largest array has this many times 64² elements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitAddition:
    """The best result of adding a unit to a plan.

    A step of one sequence takes ``added_seconds`` longer (shorter if negative). All streams get a
    token every ``period_seconds``, possibly with different layers on the unit.
    """

    added_seconds: float
    period_seconds: float


def best_additions(
    problem: PathProblem,
    loaded: tuple[PathProblem, int],
    cuts: Sequence[Cut],
    usable_bytes: Mapping[int, int],
) -> dict[int, UnitAddition | None]:
    """Return the best choice for each unit; None for a unit that has no room for a layer.

    ``problem`` is that of a step of one sequence, and ``loaded`` that of a step when all streams
    decode, with the number of steps in flight. ``usable_bytes`` are by the indices of the units.
    """
    units = tuple(usable_bytes)
    loaded_problem, in_flight = loaded
    base_seconds = problem.path_seconds(tuple(cuts))
    result: dict[int, UnitAddition | None] = {}
    for first in range(0, len(units), _CHUNK_UNITS):
        chunk = np.array(units[first : first + _CHUNK_UNITS])
        usable = np.array([usable_bytes[unit] for unit in chunk], dtype=np.int64)
        added = np.full(len(chunk), np.inf)
        period = np.full(len(chunk), np.inf)
        for parts in _parts(cuts, problem.num_items):
            has_room = _bytes(problem, chunk, parts) <= usable[:, None, None]
            has_room &= _has_layer(parts, problem.num_items)
            has_room &= _are_cuts(parts, problem.no_cuts)
            if not has_room.any():
                continue
            alone = _times(problem, cuts, parts, chunk).path_seconds - base_seconds
            added = np.minimum(added, _least(alone, has_room))
            times = _times(loaded_problem, cuts, parts, chunk)
            together = np.maximum(times.path_seconds, in_flight * times.busiest_seconds)
            period = np.minimum(period, _least(together, has_room))
        for unit, seconds, each in zip(chunk, added, period, strict=True):
            result[int(unit)] = (
                UnitAddition(added_seconds=float(seconds), period_seconds=float(each))
                if np.isfinite(seconds)
                else None
            )
    return result


def _least(values: Floats, is_possible: NDArray[np.bool_]) -> Floats:
    least: Floats = np.where(is_possible, values, np.inf).min(axis=(1, 2))
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """Parts around the boundary before stage ``position``: from any ``start`` to any ``end``.

    Starts are within the stage before the boundary, and ends within the one after it.
    """

    position: int
    start: NDArray[np.int64]
    end: NDArray[np.int64]


def _parts(cuts: Sequence[Cut], num_items: int) -> Iterator[_Parts]:
    for position in range(len(cuts) + 1):
        boundary = cuts[position].start if position < len(cuts) else num_items
        first = cuts[position - 1].start if position > 0 else boundary
        last = cuts[position].end if position < len(cuts) else boundary
        yield _Parts(
            position=position,
            start=np.arange(first, boundary + 1),
            end=np.arange(boundary, last + 1),
        )


def _has_layer(parts: _Parts, num_items: int) -> NDArray[np.bool_]:
    """Return which parts include at least one layer."""
    first = np.maximum(parts.start, 1)
    has_layer: NDArray[np.bool_] = first[:, None] < np.minimum(parts.end, num_items - 1)
    return has_layer


def _are_cuts(parts: _Parts, no_cuts: frozenset[int]) -> NDArray[np.bool_]:
    """Return which parts begin and end where stages may."""
    items = np.array(sorted(no_cuts), dtype=np.int64)
    are_cuts: NDArray[np.bool_] = (
        ~np.isin(parts.start, items)[:, None] & ~np.isin(parts.end, items)[None, :]
    )
    return are_cuts


def _sums(values: _Numbers) -> _Numbers:
    """Return prefix sums: the sum of the items before each item, and the total."""
    zero = np.zeros((*values.shape[:-1], 1), dtype=values.dtype)
    return cast("_Numbers", np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1))


def _bytes(problem: PathProblem, units: NDArray[np.int64], parts: _Parts) -> Bytes:
    """Return the memory of each part on each unit (``PathProblem.bytes_of``)."""
    sums = _sums(problem.item_bytes[units])
    last = problem.num_items
    taken: Bytes = (sums[:, None, parts.end] - sums[:, parts.start, None]) + problem.stage_bytes[
        units, None, None
    ]
    start, end = np.broadcast_arrays(parts.start[:, None], parts.end[None, :])
    for is_end, column in (
        ((start == 0) & (end == 1), 0),
        ((start == last - 1) & (end == last), 1),
    ):
        lone = problem.lone_bytes[units, column][:, None, None]
        taken = np.where(is_end & (last > 1), lone, taken)
    is_whole = (start == 0) & (end == last)
    return taken - np.where(is_whole, problem.shared_bytes[units][:, None, None], 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Seconds of a path, or of a piece of it, and of its busiest stage or link, with each part on
    each unit.
    """

    path_seconds: Floats
    busiest_seconds: Floats


def _times(
    problem: PathProblem, cuts: Sequence[Cut], parts: _Parts, units: NDArray[np.int64]
) -> _Times:
    position = parts.position
    ways = [-1, *(cut.unit for cut in cuts), -1]
    sums = _sums(problem.item_seconds[units])
    own = sums[:, None, parts.end] - sums[:, parts.start, None]
    own = own + problem.stage_seconds[units, None, None]
    before = _neighbour(problem, cuts, position - 1, units, parts.start, is_before=True)
    after = _neighbour(problem, cuts, position, units, parts.end, is_before=False)
    others = [
        problem.seconds_of(cut)
        for index, cut in enumerate(cuts)
        if index not in (position - 1, position)
    ]
    # The hops next to the boundary are those of the neighbours.
    hops = [
        (ways[index], ways[index + 1])
        for index in range(len(ways) - 1)
        if not position - 1 <= index <= position + 1
    ]
    path = own + before.path_seconds[:, :, None] + after.path_seconds[:, None, :]
    path = path + sum(others) + sum(float(problem.hop_seconds[hop]) for hop in hops)
    rest = max([*others, *(float(problem.busy_seconds[hop]) for hop in hops), 0.0])
    busiest = np.maximum(before.busiest_seconds[:, :, None], after.busiest_seconds[:, None, :])
    return _Times(path_seconds=path, busiest_seconds=np.maximum(np.maximum(busiest, own), rest))


def _neighbour(
    problem: PathProblem,
    cuts: Sequence[Cut],
    index: int,
    units: NDArray[np.int64],
    bound: NDArray[np.int64],
    *,
    is_before: bool,
) -> _Times:
    """Return the times of a stage next to the part, with the hops on both of its sides, by unit and
    by what it keeps.

    It may be missing, or have lost all of its items; then there is one hop, to the stage beyond it.
    """
    hop, busy = problem.hop_seconds, problem.busy_seconds
    if not is_before:
        hop, busy = hop.T, busy.T
    if not 0 <= index < len(cuts):
        shape = (len(units), len(bound))
        return _Times(
            path_seconds=np.broadcast_to(hop[-1, units][:, None], shape),
            busiest_seconds=np.broadcast_to(busy[-1, units][:, None], shape),
        )
    cut = cuts[index]
    beyond_index = index - 1 if is_before else index + 1
    beyond = cuts[beyond_index].unit if 0 <= beyond_index < len(cuts) else -1
    sums = _sums(problem.item_seconds[cut.unit])
    kept = sums[bound] - sums[cut.start] if is_before else sums[cut.end] - sums[bound]
    kept = kept + problem.stage_seconds[cut.unit]
    is_kept = bound > cut.start if is_before else bound < cut.end
    path = kept[None, :] + hop[beyond, cut.unit] + hop[cut.unit, units][:, None]
    busiest = np.maximum(
        np.maximum(kept[None, :], busy[beyond, cut.unit]), busy[cut.unit, units][:, None]
    )
    return _Times(
        path_seconds=np.where(is_kept[None, :], path, hop[beyond, units][:, None]),
        busiest_seconds=np.where(is_kept[None, :], busiest, busy[beyond, units][:, None]),
    )
