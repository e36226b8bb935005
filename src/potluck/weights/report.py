"""What loading did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRemark:
    """A tensor that was not loaded as it was asked for, and why.

    ``relative_error`` is the largest of any value, ``|loaded - stored| / |stored|``; None where it
    was not measured (an error that was asked for by ``--quant`` never is: to find it takes longer
    than to quantize).
    """

    name: str
    remark: str
    relative_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """``weights`` are bytes by format (label, bytes); ``read_bytes`` came from the source."""

    read_bytes: int
    seconds: float
    weights: tuple[tuple[str, int], ...]
    remarks: tuple[TensorRemark, ...] = ()

    def remark_lines(self) -> Iterator[str]:
        """For messages: each remark once, with how many tensors it is about and their error."""
        count = Counter(each.remark for each in self.remarks)
        for remark, num_tensors in count.items():
            concerned = [each for each in self.remarks if each.remark == remark]
            errors = [each.relative_error for each in concerned if each.relative_error is not None]
            others = f" and {num_tensors - 1} more" if num_tensors > 1 else ""
            error = f" (relative error at most {max(errors):.2g})" if errors else ""
            yield f"{concerned[0].name}{others}: {remark}{error}"
