"""The exchange of slices between the members of a group during a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Exchange(Protocol):
    """The connection to the other members of a group, used by the compute thread."""

    def exchange(self, sent: Sequence[memoryview], received: Sequence[memoryview]) -> None:
        """Send ``sent[m]`` to member ``m``, and fill ``received[m]`` with the data from it.

        Both have one buffer per member, in order; a member's own buffer and empty buffers are not
        exchanged. All members must call this equally often and with matching sizes. Returns when
        all data has arrived and ``sent`` may be overwritten. Raise ``EdgeError`` if a member is
        lost, and ``EngineError`` if a member cannot compute the current step.
        """
        ...
