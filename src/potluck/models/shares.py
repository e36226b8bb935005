"""Divide units among the members of a group in proportion to their shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

VOCABULARY_UNITS = (256, 64, 16)
"""Number of rows of the embedding and of the head that are divided as a unit: the first that leaves
each member ``_LEAST_UNITS`` units, so that rounding changes a share by less than 2 %."""

_LEAST_UNITS = 32


def unit_bounds(num_units: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return bounds ``[0, …, num_units]`` between the members, each of which gets at least one
    unit.

    As all members wait for the slowest one, the largest ratio of units to shares is minimized:
    after integer quotas, each remaining unit goes where the ratio stays smallest, with ties going
    to the earlier member. Raises ``ValueError`` if there are fewer units than members.
    """
    if num_units < len(shares):
        raise ValueError(f"{num_units} units cannot be divided among {len(shares)} members")
    total = sum(shares)
    counts = [num_units * share // total for share in shares]
    members = range(len(shares))
    for _ in range(num_units - sum(counts)):
        counts[min(members, key=lambda m: (counts[m] + 1) / shares[m])] += 1
    for member in members:
        if counts[member] == 0:
            counts[max(members, key=lambda m: (counts[m] > 1, counts[m] / shares[m]))] -= 1
            counts[member] = 1
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)


@lru_cache(maxsize=256)
def head_bounds(
    num_units: int, num_heads: int, together: int, shares: tuple[int, ...]
) -> tuple[int, ...]:
    """Return bounds between the members' units, which are divided equally among key-value heads.

    Bounds are multiples of ``together``, and a member has units of a single head, or all units of
    one or several heads. The largest ratio of units to shares is minimized first, then the sum of
    squared ratios. Returns an empty list if there are no such bounds.
    """
    size = num_units // num_heads

    def is_allowed(start: int, end: int) -> bool:
        return start // size == (end - 1) // size or (start % size == 0 and end % size == 0)

    found: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, (0,))}
    for share in shares:
        best: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for start, (largest, total, bounds) in found.items():
            for end in range(start + together, num_units + 1, together):
                if not is_allowed(start, end):
                    continue
                ratio = (end - start) / share
                ways = (max(largest, ratio), total + ratio * ratio, (*bounds, end))
                if end not in best or ways[:2] < best[end][:2]:
                    best[end] = ways
        found = best
    return found[num_units][2] if num_units in found else ()


def vocabulary_bounds(vocab_size: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Return the bounds between the members' rows of the embedding and of the head.

    They are multiples of 16, except at the end. Empty if there are too few rows, so that every
    member has all.
    """
    for unit in VOCABULARY_UNITS:
        num_units = -(-vocab_size // unit)
        if num_units >= (_LEAST_UNITS if unit > VOCABULARY_UNITS[-1] else 1) * len(shares):
            bounds = unit_bounds(num_units, shares)
            return tuple(min(bound * unit, vocab_size) for bound in bounds)
    return ()
