"""The result of loading."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from potluck.types.stage import TensorRemark


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """The result of loading: bytes of ``weights`` by format (label, bytes), and the ``read_bytes``
    from the source.
    """

    read_bytes: int
    seconds: float
    weights: tuple[tuple[str, int], ...]
    remarks: tuple[TensorRemark, ...] = ()


def remark_lines(remarks: Iterable[TensorRemark]) -> Iterator[str]:
    """Yield each remark once for messages, with the number of tensors concerned.

    A tensor that is on several stages counts once.
    """
    distinct = tuple(dict.fromkeys(remarks))
    count = Counter(each.remark for each in distinct)
    for remark, num_tensors in count.items():
        first = next(each for each in distinct if each.remark == remark)
        others = f" and {num_tensors - 1} more" if num_tensors > 1 else ""
        yield f"{first.name}{others}: {remark}"
