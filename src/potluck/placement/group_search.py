"""The choice of units for groups: a bounded number of choices, each solved as a pipeline.

A choice divides units into groups and single units; with every group treated as one unit, the
solver finds the best pipeline. One group, a pipeline of groups, and combinations of groups and
single units are all compared with the best pipeline of single units by the same prediction. The
choices are a heuristic: groups grow from each of the fastest units by the unit that makes them
fastest, according to an estimate that treats all layers as equal and every share as possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from potluck.placement.candidates import Candidate, PlaceRequest
from potluck.placement.group_times import exchange_overhead
from potluck.placement.grouping import Group, can_join
from potluck.placement.path import Floats, PathProblem
from potluck.placement.times import UnitTimes
from potluck.types.choices import Objective

MOST_MEMBERS = 16
"""The maximum size of an automatically chosen group: each member sends to every other one."""
_MOST_UNITS = 64
"""The maximum number of units considered for groups, the fastest first."""
_MOST_SEEDS = 8
_MOST_CHOICES = 12
"""The maximum number of choices that are solved, the most promising first."""
_MOST_LOADED = 4
"""The same for throughput, whose searches take ten times as long."""
_DIGITS = 5
"""Latencies that agree to this many decimals are considered equal: 10 µs are a tenth of an
exchange.
"""
_LEAST_PART = 0.01
"""The part of the model for which a unit must have room to join a group."""
_OF_ROOM = 0.95
"""The part of its units' room that a group is expected to fill: parts consist of whole heads."""

_MOST_TOTAL = 64
"""The maximum sum of the shares of up to four members; with more, sixteen per member."""

_NEAR = 0.02
"""How much longer a step may take with shares of a smaller sum: less than the error of predictions.
"""


def choices(
    request: PlaceRequest,
    problem: PathProblem,
    wanted: int | None,
    *,
    most_seconds: float = math.inf,
) -> Iterator[tuple[Group, ...]]:
    """Yield groups to plan with.

    ``problem`` is that of a step of one sequence on the candidates without groups. ``wanted`` is
    the required number of units per stage; None for any. Groups with which a step is estimated to
    take longer than ``most_seconds`` are left out.
    """
    if request.divide is None:
        return
    search = GroupSearch.of(request, problem)
    most = _MOST_CHOICES if request.preferences.objective is Objective.LATENCY else _MOST_LOADED
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for estimate, sets in search.promising(wanted):
        if estimate > most_seconds:
            continue
        groups = search.groups(sets)
        key = tuple(sorted(group.members for group in groups))
        if groups and key not in seen and (wanted is None or len(groups) == len(sets)):
            seen.add(key)
            yield groups
        if len(seen) >= most:
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSearch:
    """The input of the search for groups.

    ``seconds`` has the time of each candidate for the whole model, ``latency`` and
    ``seconds_per_byte`` those of the links between any two, and ``units`` the candidates that may
    join groups, the fastest first. A step has ``num_exchanges``, of ``exchanged_bytes`` in total.
    Units of the same entry of ``kinds`` are alike in speed, memory and latencies.
    """

    request: PlaceRequest
    units: tuple[int, ...]
    seconds: Floats
    slowness: Floats
    latency: Floats
    seconds_per_byte: Floats
    num_exchanges: int
    exchanged_bytes: float
    kinds: Mapping[int, int]

    @classmethod
    def of(cls, request: PlaceRequest, problem: PathProblem) -> GroupSearch:
        """Return the search for a request; ``problem`` is that of ``choices``."""
        seconds = problem.item_seconds.sum(axis=1) + problem.stage_seconds
        able = [
            index
            for index, each in enumerate(request.candidates)
            if can_join(each) and _part_of_model(each) > _LEAST_PART
        ]
        units = sorted(able, key=lambda index: (seconds[index], index))[:_MOST_UNITS]
        nodes = [each.node_id for each in request.candidates]
        size = len(nodes)
        latency, rates = np.zeros((size, size)), np.zeros((size, size))
        for a in units:
            for b in units:
                if a != b:
                    link = request.links.link(nodes[a], nodes[b])
                    latency[a, b], rates[a, b] = link.latency_seconds, 1 / link.bytes_per_second
        divided = request.divide((1, 1)) if request.divide is not None and len(units) > 1 else None
        phases = () if divided is None else divided.phases
        kinds: dict[object, int] = {}
        kind_of = {
            unit: kinds.setdefault(
                (
                    float(seconds[unit]),
                    request.candidates[unit].usable_bytes,
                    tuple(sorted(latency[unit, list(units)].round(_DIGITS).tolist())),
                ),
                len(kinds),
            )
            for unit in units
        }
        return cls(
            request=request,
            units=tuple(units),
            seconds=seconds,
            slowness=np.array([_slowness(each) for each in request.candidates]),
            latency=np.maximum(latency, latency.T),
            seconds_per_byte=np.maximum(rates, rates.T),
            num_exchanges=0 if divided is None else divided.num_exchanges,
            exchanged_bytes=sum(sum(each.sent_bytes) for each in phases),
            kinds=kind_of,
        )

    def promising(self, wanted: int | None) -> Iterator[tuple[float, list[list[int]]]]:
        """Yield sets of units for groups, with the estimated seconds of a step.

        Single groups alternate with several groups of one size; of each, the fastest come first, or
        those that serve the most steps at a time if throughput counts.
        """
        found: dict[object, tuple[float, list[list[int]]]] = {}

        def add(sets: list[list[int]], estimate: float) -> None:
            # One choice represents all choices of equivalent units.
            kinds = tuple(sorted(tuple(sorted(self.kinds[unit] for unit in each)) for each in sets))
            found.setdefault((kinds, estimate), (estimate, sets))

        sizes = [wanted] if wanted else list(range(2, min(MOST_MEMBERS, len(self.units)) + 1))
        for seed in self.units[:_MOST_SEEDS]:
            for members, estimate in self._growing(seed, self.units, max(sizes, default=0)):
                if len(members) in sizes:
                    add([members], estimate)
        for size in sizes:
            tiles, estimates = self._tiles(size)
            for count in range(2, len(tiles) + 1):
                # Each group gets layers in proportion to its speed.
                mean = count / sum(1 / each for each in estimates[:count])
                add(tiles[:count], mean)
        preferences = self.request.preferences
        in_flight = 1
        if preferences.objective is Objective.THROUGHPUT:
            in_flight = preferences.num_streams

        def of_stage(each: tuple[float, list[list[int]]]) -> float:
            estimate, sets = each
            return estimate / min(len(sets), in_flight)

        ordered = sorted(found.values(), key=of_stage)
        single = [each for each in ordered if len(each[1]) == 1]
        several = [each for each in ordered if len(each[1]) > 1]
        for pair in zip_longest(single, several):
            yield from (each for each in pair if each is not None)

    def _tiles(self, size: int) -> tuple[list[list[int]], list[float]]:
        left = list(self.units)
        tiles: list[list[int]] = []
        estimates: list[float] = []
        while len(left) >= size:
            *_, (members, estimate) = self._growing(left[0], left, size)
            tiles.append(members)
            estimates.append(estimate)
            left = [each for each in left if each not in members]
        return tiles, estimates

    def _growing(
        self, seed: int, among: Sequence[int], most: int
    ) -> Iterator[tuple[list[int], float]]:
        """Yield the group of ``seed`` as it grows, with the estimated seconds of a step."""
        members = [seed]
        latency = self.latency[seed].copy()
        rate = self.seconds_per_byte[seed].copy()
        speed, slowness = 1 / self.seconds[seed], self.slowness[seed]
        worst_latency = worst_rate = 0.0
        rest = np.array([each for each in among if each != seed], dtype=np.intp)
        yield list(members), float(self.seconds[seed])
        while len(members) < most and len(rest):
            count = len(members) + 1
            estimates = self._estimates(
                1 / (speed + 1 / self.seconds[rest]),
                count,
                np.maximum(slowness, self.slowness[rest]),
                np.maximum(worst_latency, latency[rest]),
                np.maximum(worst_rate, rate[rest]),
            )
            place = int(np.argmin(estimates))
            unit = int(rest[place])
            worst_latency = max(worst_latency, float(latency[unit]))
            worst_rate = max(worst_rate, float(rate[unit]))
            speed += 1 / self.seconds[unit]
            slowness = max(slowness, self.slowness[unit])
            members.append(unit)
            rest = np.delete(rest, place)
            latency = np.maximum(latency, self.latency[unit])
            rate = np.maximum(rate, self.seconds_per_byte[unit])
            yield list(members), float(estimates[place])

    def _estimates(
        self,
        computing: Floats,
        num_members: int,
        slowness: Floats,
        latency: Floats,
        seconds_per_byte: Floats,
    ) -> Floats:
        """Return the estimated seconds of a step in a group; each member sends its part to all
        others.
        """
        overhead = slowness * exchange_overhead(num_members)
        sent = self.exchanged_bytes * (num_members - 1) / num_members
        estimates: Floats = (
            computing + self.num_exchanges * (overhead + latency) + sent * seconds_per_byte
        )
        return estimates

    def groups(self, sets: Sequence[Sequence[int]]) -> tuple[Group, ...]:
        """Return groups of these units with shares, without those that cannot hold anything."""
        candidates = self.request.candidates
        rooms = [sum(_part_of_model(candidates[unit]) for unit in each) for each in sets]
        total = sum(rooms)
        groups = []
        for each, room in zip(sets, rooms, strict=True):
            if room <= 0:
                continue
            # As much of the model as the group may have to hold.
            most = min(1.0, _OF_ROOM * room) if len(sets) == 1 else min(1.0, room / max(total, 1.0))
            members = self._leader_first(each)
            shares = shares_of(
                [float(self.seconds[unit]) for unit in members],
                [_part_of_model(candidates[unit]) / most for unit in members],
            )
            if shares is not None:
                groups.append(Group(members=members, shares=shares))
        return tuple(groups)

    def _leader_first(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return members in order: the coordinator's own unit leads, or otherwise the fastest."""
        candidates = self.request.candidates
        return tuple(
            sorted(
                members,
                key=lambda unit: (
                    candidates[unit].node_id != self.request.coordinator,
                    self.seconds[unit],
                    unit,
                ),
            )
        )


def _slowness(candidate: Candidate) -> float:
    times = candidate.times
    return times.speed.slowness if isinstance(times, UnitTimes) else 1.0


def _part_of_model(candidate: Candidate) -> float:
    """Return the part of the model for which a unit has room: above 1 if it has more than
    enough.
    """
    room = candidate.usable_bytes - candidate.cost.stage_bytes
    return max(0.0, room / max(1, candidate.cost.model_bytes))


def shares_of(
    seconds: Sequence[float], most: Sequence[float] | None = None
) -> tuple[int, ...] | None:
    """Return shares for members that would each take ``seconds`` for the whole alone.

    No member gets more than its part ``most`` of the whole, as its memory allows. Return None if
    the members cannot hold the whole, or if a member cannot hold anything.

    Shares are small integers, so that a plan made again from slightly different measurements has
    the same ones, and members keep their weights.
    """
    limits = [1.0] * len(seconds) if most is None else [min(1.0, each) for each in most]
    parts = _parts(seconds, limits)
    if parts is None:
        return None
    best = _slowest(parts, seconds)
    most_total = max(_MOST_TOTAL, 16 * len(seconds))
    for total in range(len(seconds), most_total + 1):
        shares = _rounded(parts, total)
        fractions = [each / total for each in shares]
        fits = all(a <= b for a, b in zip(fractions, limits, strict=True))
        if fits and _slowest(fractions, seconds) <= best * (1 + _NEAR):
            return shares
    # Near the limits, or with very unequal members, only finer shares are possible.
    finest = 16 * most_total
    shares = _rounded(parts, finest)
    if all(share <= limit * finest for share, limit in zip(shares, limits, strict=True)):
        return shares
    return _within(parts, limits, finest)


def _parts(seconds: Sequence[float], limits: Sequence[float]) -> list[float] | None:
    """Return parts of the whole, in proportion to speed as far as the limits allow."""
    if sum(limits) < 1.0 or min(limits) <= 0.0:
        return None
    parts = [0.0] * len(seconds)
    free = set(range(len(seconds)))
    left = 1.0
    while free:
        speed = sum(1 / seconds[member] for member in free)
        full = {member for member in free if left / (seconds[member] * speed) >= limits[member]}
        if not full:
            for member in free:
                parts[member] = left / (seconds[member] * speed)
            break
        for member in full:
            parts[member] = limits[member]
        left -= sum(limits[member] for member in full)
        free -= full
    return parts


def _slowest(parts: Sequence[float], seconds: Sequence[float]) -> float:
    return max(part * each for part, each in zip(parts, seconds, strict=True))


def _rounded(parts: Sequence[float], total: int) -> tuple[int, ...]:
    """Return positive integers with this sum that exceed the parts by as little as possible."""
    counts = [max(1, int(part * total)) for part in parts]
    members = range(len(parts))
    while sum(counts) < total:
        counts[min(members, key=lambda m: (counts[m] + 1) / parts[m])] += 1
    while sum(counts) > total:
        counts[max(members, key=lambda m: (counts[m] > 1, counts[m] / parts[m]))] -= 1
    return tuple(counts)


def _within(parts: Sequence[float], limits: Sequence[float], total: int) -> tuple[int, ...] | None:
    counts = [max(1, int(part * total)) for part in parts]
    room = [int(limit * total) for limit in limits]
    for member in range(len(parts)):
        more = min(room[member] - counts[member], total - sum(counts))
        counts[member] += max(0, more)
    fits = sum(counts) == total and all(a <= b for a, b in zip(counts, room, strict=True))
    return tuple(counts) if fits else None
