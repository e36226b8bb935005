"""What loading did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRemark:
    """A tensor that was not loaded as it was asked for, and why."""

    name: str
    remark: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """``weights`` are bytes by format (label, bytes); ``read_bytes`` came from the source."""

    read_bytes: int
    seconds: float
    weights: tuple[tuple[str, int], ...]
    remarks: tuple[TensorRemark, ...] = ()

    def remark_lines(self) -> Iterator[str]:
        """For messages: each remark once, with how many tensors it is about."""
        count = Counter(each.remark for each in self.remarks)
        for remark, num_tensors in count.items():
            first = next(each for each in self.remarks if each.remark == remark)
            others = f" and {num_tensors - 1} more" if num_tensors > 1 else ""
            yield f"{first.name}{others}: {remark}"
