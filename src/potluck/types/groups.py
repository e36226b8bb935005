"""Groups of units that compute the layers of a stage together, and layouts with such groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from potluck.types.cluster import NodeId, OnUnit, UnitId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPart:
    """A member's part of a *group* of units that compute the layers of a stage together.

    Every matrix is divided among the members by rows; member ``m`` has about ``shares[m] /
    sum(shares)`` of them. This is tensor parallelism (Shoeybi et al. 2019), but always by output
    rows, so that the order of summation does not change. Member 0 leads: it receives the stage's
    input, samples, and sends the output. ``shares`` are positive.
    """

    member: int
    shares: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.member < len(self.shares) or min(self.shares) < 1 or len(self.shares) < 2:
            raise ValueError(f"invalid group part: {self}")

    @property
    def is_leader(self) -> bool:
        """Whether it is member 0."""
        return self.member == 0


def group_ranges(parts: Iterable[GroupPart | None]) -> tuple[range, ...]:
    """Return the range of indices that form each stage of a pipeline, given the part of each.

    A range has one unit, or the members of a group, which are consecutive.
    """
    known = tuple(parts)
    leading = [index for index, part in enumerate(known) if part is None or part.is_leader]
    ends = [*leading[1:], len(known)]
    return tuple(range(start, end) for start, end in zip(leading, ends, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStage(OnUnit):
    """A stage of a layout that the user specified: a number of decoder layers on a unit.

    The first stage of a layout also has the embedding, and the last one the head. The members of a
    group are consecutive, the leader first; each has all of its layers, and its ``part`` of them.
    """

    node_id: NodeId
    unit_id: UnitId
    num_layers: int
    part: GroupPart | None = None

    @property
    def is_led(self) -> bool:
        """Whether another member of its group leads the stage."""
        return self.part is not None and not self.part.is_leader
