"""Fair shares of memory that several units draw on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Memory of which all ``members`` (indices of units) together may use ``left_bytes``."""

    left_bytes: int
    members: frozenset[int]


def fair_shares(most_bytes: Sequence[int], pools: Sequence[Pool]) -> list[int]:
    """Return what each unit may use, at most its ``most_bytes``, without overdrawing any pool.

    Max-min fair (Bertsekas and Gallager, Data Networks, section 6.5.2): all units' shares rise
    together until one reaches its maximum or a pool is used up; the others continue. A unit that
    cannot use an equal part leaves the rest to the others.
    """
    shares = [max(0, most) for most in most_bytes]
    rising = set(range(len(shares)))
    left = [max(0, pool.left_bytes) for pool in pools]
    while rising:
        full = min(rising, key=lambda unit: (shares[unit], unit))
        level, stopping = shares[full], {full}
        for pool, pool_left in zip(pools, left, strict=True):
            drawing = pool.members & rising
            if drawing and pool_left // len(drawing) < level:
                level, stopping = pool_left // len(drawing), set(drawing)
        for unit in stopping:
            shares[unit] = level
        rising -= stopping
        left = [
            pool_left - level * len(pool.members & stopping)
            for pool, pool_left in zip(pools, left, strict=True)
        ]
    return shares
