"""Plan memory for intermediate buffers of a call on devices for which tinygrad does not.

tinygrad lets intermediate buffers of a call share memory as parts of one buffer, which OpenCL does
not support; without it, every layer would keep its own buffers. Here whole buffers are reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from potluck.engines.tinygrad.adapter import Ops, UOp, buffers

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(slots=True, kw_only=True)
class _Use:
    """The first and the last of a call's kernels that use a buffer."""

    first: int
    last: int


def shared_scratch(linear: UOp) -> UOp:
    """Return the kernels of ``linear``, in which later intermediate buffers reuse earlier ones.

    Intermediate buffers are those that are not allocated in advance. A buffer may reuse a larger
    one of its type.
    """
    uses: dict[UOp, _Use] = {}
    for index, kernel in enumerate(linear.src):
        for buffer in _intermediates(kernel):
            uses.setdefault(buffer, _Use(first=index, last=index)).last = index
    places: dict[UOp, UOp] = {}
    free: list[UOp] = []
    in_use: dict[UOp, int] = {}
    for buffer, use in sorted(uses.items(), key=lambda item: item[1].first):
        ended = [place for place, last in in_use.items() if last < use.first]
        for place in ended:
            del in_use[place]
        free += ended
        fitting = [
            place
            for place in free
            if place.dtype == buffer.dtype and place.max_numel() >= buffer.max_numel()
        ]
        place = min(fitting, key=lambda place: int(place.max_numel()), default=buffer)
        if place in free:
            free.remove(place)
        places[buffer] = place
        in_use[place] = use.last
    return linear.substitute(places, walk=True)


def _intermediates(kernel: UOp) -> Iterator[UOp]:
    for argument in kernel.src[1:]:
        for part in argument.toposort():
            if part.op is Ops.BUFFER and not part.is_variable and buffers.get(part) is None:
                yield part
