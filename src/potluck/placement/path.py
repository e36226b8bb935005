"""Placement as a path problem: which units, in which order, take which part of a row of items.

The items of a model are its embedding, its decoder layers and its head, in this order. Every stage
takes a contiguous, non-empty range of them. Each unit has at most one stage.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from potluck.placement.cuts import Cut

Floats: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PathProblem:
    """Units, items and links of one problem. The arrays must not be modified.

    With ``U`` units and ``I`` items:

    - ``usable_bytes`` ``[U]``, ``item_bytes`` ``[U, I]``, and ``stage_bytes`` ``[U]``, the fixed
      cost of any stage. A stage of all items takes ``shared_bytes`` ``[U]`` less (a tied head is
      the embedding); a stage of only the first or only the last item takes ``lone_bytes`` ``[U,
      2]`` in total, which is less than the sum of its parts.
    - ``item_seconds`` ``[U, I]`` and ``stage_seconds`` ``[U]`` in the same way.
    - ``hop_seconds`` ``[U + 1, U + 1]``: the time that a hop from one unit to another adds to a
      step; the last row is from the source, the last column to the sink. ``busy_seconds``, of the
      same shape: how long the hop occupies the link, at most ``hop_seconds``.
    - No stage begins or ends before an item in ``no_cuts``.
    """

    usable_bytes: Bytes
    item_bytes: Bytes
    stage_bytes: Bytes
    shared_bytes: Bytes
    lone_bytes: Bytes
    item_seconds: Floats
    stage_seconds: Floats
    hop_seconds: Floats
    busy_seconds: Floats
    no_cuts: frozenset[int] = frozenset()

    @property
    def num_units(self) -> int:
        """Return ``U``."""
        return len(self.usable_bytes)

    @property
    def num_items(self) -> int:
        """Return ``I``: the layers, the embedding and the head."""
        return int(self.item_bytes.shape[1])

    def bytes_of(self, cut: Cut) -> int:
        """Return the memory cost of a stage."""
        unit, last = cut.unit, self.num_items
        if (cut.start, cut.end) == (0, 1) and last > 1:
            return int(self.lone_bytes[unit, 0])
        if (cut.start, cut.end) == (last - 1, last) and last > 1:
            return int(self.lone_bytes[unit, 1])
        num_bytes = int(self.item_bytes[unit, cut.start : cut.end].sum() + self.stage_bytes[unit])
        return num_bytes - (int(self.shared_bytes[unit]) if cut.end - cut.start == last else 0)

    def seconds_of(self, cut: Cut) -> float:
        """Return how long a stage takes for a step."""
        unit = cut.unit
        return float(self.item_seconds[unit, cut.start : cut.end].sum() + self.stage_seconds[unit])

    def path_seconds(self, cuts: tuple[Cut, ...]) -> float:
        """Return how long a step takes from the source through all stages to the sink."""
        ends = [-1, *(cut.unit for cut in cuts), -1]
        hops = sum(float(self.hop_seconds[a, b]) for a, b in pairwise(ends))
        return hops + sum(map(self.seconds_of, cuts))

    def bottleneck_seconds(self, cuts: tuple[Cut, ...]) -> float:
        """Return how long a step occupies the bottleneck: the busiest stage or link."""
        ends = [-1, *(cut.unit for cut in cuts), -1]
        links = [float(self.busy_seconds[a, b]) for a, b in pairwise(ends)]
        return max(*links, *map(self.seconds_of, cuts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A solution of a ``PathProblem``: stages in order, and how good it is.

    ``seconds`` is the minimized value, and ``bound_seconds`` a lower bound for all solutions; they
    are equal if the solution was proved optimal.
    """

    cuts: tuple[Cut, ...]
    seconds: float
    bound_seconds: float

    @property
    def gap(self) -> float:
        """Return by how much another solution could be better, relative to this one's seconds."""
        return max(0.0, 1 - self.bound_seconds / self.seconds) if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputPath:
    """Stages for ``num_streams``.

    With ``num_in_flight`` steps of ``num_sequences`` sequences each (the last may have fewer),
    all streams get a token every ``path.seconds``.
    """

    path: Path
    num_in_flight: int
    num_sequences: int
    num_streams: int
