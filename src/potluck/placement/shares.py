"""The shares by which the members of a group divide a model, so that all take about as long.

Shares are small integers, so that a plan made again from slightly different measurements has the
same ones, and members keep their weights.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_TOTAL = 64
"""The maximum sum of the shares of up to four members; with more, sixteen per member."""
_NEAR = 0.02
"""How much longer a step may take with shares of a smaller sum: less than the error of predictions.
"""


def shares_of(
    seconds: Sequence[float], most: Sequence[float] | None = None
) -> tuple[int, ...] | None:
    """Return shares for members, each of which takes ``seconds`` for the whole by itself.

    No member gets more than its part ``most`` of the whole, as its memory allows. Return None if
    the members cannot hold the whole, or if a member cannot hold anything.
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
