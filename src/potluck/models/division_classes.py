"""Classes of values that are divided among the members of a group at the same boundaries.

A class has a number of equal units, such as heads, and every value of the class has the same number
of columns per unit. While a program is analyzed, ops join classes and limit their units; the parts
of each member are known once the analysis is complete.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from potluck.models.shares import head_bounds, unit_bounds

PANEL = 16
"""Rows of a matrix that are computed together; members exchange whole panels."""

GROUP = 32
"""Columns that share a scale when a product quantizes them. Inputs of products are exchanged in
whole groups where possible, so that members can exchange them quantized."""

_NARROW = 4
_FEW_WEIGHTS = 2**22
"""Values up to this fraction of the hidden size in width, computed from at most this many weights,
are computed in full by every member instead of being exchanged: in a 4-bit format these weights are
2.3 MB, which are read in about the time that an exchange takes."""


Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges, one for each member; empty if every member has all."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Which of ``num_units`` units each member has, as half-open ranges; none if every member has
    all.
    """

    ranges: Ranges
    num_units: int

    def of(self, width: int) -> Ranges:
        """Return the ranges of a value with ``width`` columns, or heads, in total."""
        columns = width // self.num_units
        return tuple((start * columns, end * columns) for start, end in self.ranges)

    def covered_by(self, num_units: int) -> Parts:
        """Divide into ``num_units`` larger units: return those of which each member has a part."""
        size = self.num_units // num_units
        ranges = tuple((start // size, -(-end // size)) for start, end in self.ranges)
        return Parts(ranges, num_units)


WHOLE = Parts((), 1)


class ValueClass:
    """Values that are divided at the same boundaries, into at most ``num_units`` equal units.

    ``num_weights`` is the number of weights multiplied per token to compute them; None if they cost
    more than that.
    """

    def __init__(self, num_units: int, *, num_weights: int | None) -> None:
        self._parent: ValueClass | None = None
        self._num_units = num_units
        self._num_weights = math.inf if num_weights is None else num_weights
        self._exchanged: dict[int, int] = {}
        """The preferred alignment, by width."""
        self._is_kept_whole = False
        self._num_heads = 1
        self._covered: ValueClass | None = None

    @property
    def root(self) -> ValueClass:
        """Return the representative of all classes that this one was joined with."""
        found = self
        while found._parent is not None:
            found = found._parent
        return found

    def join(self, other: ValueClass) -> None:
        """Merge the two classes."""
        one, two = self.root, other.root
        if one is two:
            return
        two._parent = one
        one._num_units = math.gcd(one._num_units, two._num_units)
        one._num_weights += two._num_weights
        for width, alignment in two._exchanged.items():
            one.exchange(width, alignment)
        one._is_kept_whole |= two._is_kept_whole
        one.have_heads(two._num_heads)
        if two._covered is not None:
            one.cover(two._covered)

    def limit(self, num_units: int) -> None:
        """Limit the number of units."""
        self.root._num_units = math.gcd(self.root._num_units, num_units)

    def exchange(self, width: int, alignment: int = PANEL) -> None:
        """Record that members exchange a value of this width, or need it in whole panels."""
        exchanged = self.root._exchanged
        exchanged[width] = max(alignment, exchanged.get(width, PANEL))

    def have_heads(self, num_heads: int) -> None:
        """Restrict members to units of a single key-value head, or of whole ones."""
        root = self.root
        if root._num_heads not in (1, num_heads) and num_heads != 1:
            root._is_kept_whole = True
        root._num_heads = max(root._num_heads, num_heads)

    def cover(self, heads: ValueClass) -> None:
        """Give each member the units that contain its units of ``heads``; they may overlap."""
        root = self.root
        if root._covered is None:
            root._covered = heads
        else:
            root._covered.join(heads)

    @property
    def covers_heads(self) -> bool:
        """Whether members may share units (``cover``)."""
        return self.root._covered is not None

    def keep_whole(self) -> None:
        """Make every member compute the value in full."""
        self.root._is_kept_whole = True

    def parts(self, shares: tuple[int, ...], hidden_size: int) -> Parts:
        """Return the units of each member."""
        root = self.root
        exchanged = root._exchanged
        is_narrow = bool(exchanged) and max(exchanged) * _NARROW <= hidden_size
        if root._is_kept_whole or (is_narrow and root._num_weights <= _FEW_WEIGHTS):
            return WHOLE
        if root._covered is not None:
            heads = root._covered.root
            if exchanged or heads is root or root._num_units != heads._num_heads:
                return WHOLE
            return heads.parts(shares, hidden_size).covered_by(root._num_units)
        for largest in (GROUP, PANEL):
            together = 1
            for width, preferred in exchanged.items():
                columns, alignment = width // root._num_units, min(preferred, largest)
                together = math.lcm(together, alignment // math.gcd(alignment, columns))
            bounds = root._bounds(together, shares)
            if bounds:
                return Parts(tuple(pairwise(bounds)), root._num_units)
        return WHOLE

    def _bounds(self, together: int, shares: tuple[int, ...]) -> tuple[int, ...]:
        """Return the bounds between members in units, multiples of ``together``; empty if there are
        none.
        """
        num_steps, rest = divmod(self._num_units, together)
        if rest or num_steps < len(shares) or self._num_units % self._num_heads:
            return ()
        if self._num_heads > 1:
            return head_bounds(self._num_units, self._num_heads, together, shares)
        return tuple(bound * together for bound in unit_bounds(num_steps, shares))
