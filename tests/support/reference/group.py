"""The exchange between members of a group in the reference engine, always in float32."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from potluck.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from potluck.types.engine import Exchange
    from potluck.types.groups import GroupPart

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]


class ReferenceGroup:
    """The other members, as seen from ``part``. Steps without tokens exchange nothing."""

    def __init__(self, part: GroupPart | None) -> None:
        self._part = part
        self._exchange: Exchange | None = None

    def join(self, exchange: Exchange | None) -> None:
        """See ``LoadableEngine.join_group``."""
        self._exchange = exchange

    def gather(self, x: Floats, widths: Sequence[int]) -> Floats:
        """Return ``[rows, sum(widths)]``: the columns of all members for each row, in order."""
        received = self._exchanged(x, [(len(x), width) for width in widths])
        return np.concatenate(received, axis=1)

    def embed(self, weight: Floats, tokens: Ints, bounds: Sequence[int]) -> Floats:
        """Return the rows of ``tokens`` in an embedding; ``weight`` is this member's part."""
        places = [
            np.nonzero((tokens >= start) & (tokens < end))[0] for start, end in pairwise(bounds)
        ]
        first = bounds[self._member]
        own = weight[tokens[places[self._member]] - first]
        out = np.empty((len(tokens), weight.shape[1]), dtype=np.float32)
        shapes = [(len(each), weight.shape[1]) for each in places]
        for place, rows in zip(places, self._exchanged(own, shapes), strict=True):
            out[place] = rows
        return out

    def gather_at_leader(self, x: Floats, bounds: Sequence[int]) -> Floats:
        """Like ``gather``, for member 0 only; the others get no columns."""
        shapes = [(len(x), end - start) for start, end in pairwise(bounds)]
        if self._member != 0:
            self._exchanged(x, [(0, 0)] * len(shapes), to=range(1))
            return x[:, :0]
        return np.concatenate(self._exchanged(x, shapes, to=range(0)), axis=1)

    @property
    def _member(self) -> int:
        return 0 if self._part is None else self._part.member

    def _exchanged(
        self, own: Floats, shapes: Sequence[tuple[int, int]], to: range | None = None
    ) -> list[Floats]:
        """Send ``own`` to all members that ``to`` names, and return what each member sent, in these
        shapes.
        """
        exchange = self._exchange
        if exchange is None:
            raise EngineError(
                "a member of a group cannot compute alone",
                hint="this is a defect in Potluck; please report it",
            )
        others = [member for member in range(len(shapes)) if member != self._member]
        received = [np.empty(shape, dtype=np.float32) for shape in shapes]
        received[self._member] = own
        data = np.ascontiguousarray(own).view(np.uint8).reshape(-1).data
        exchange.exchange(
            [
                data if member in others and (to is None or member in to) else memoryview(b"")
                for member in range(len(shapes))
            ],
            [
                received[member].reshape(-1).view(np.uint8).data
                if member in others
                else memoryview(b"")
                for member in range(len(shapes))
            ],
        )
        return received
