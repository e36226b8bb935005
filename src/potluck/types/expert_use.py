"""Statistics on how often mapped experts were already in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUse:
    """The number of matrices of mapped experts used by steps, and how many were in memory.

    The others had to be read from the file. Both are 0 if no expert is mapped.
    """

    num_used: int = 0
    num_in_memory: int = 0

    def __add__(self, other: ExpertUse) -> ExpertUse:
        """Return the totals of both."""
        return ExpertUse(
            num_used=self.num_used + other.num_used,
            num_in_memory=self.num_in_memory + other.num_in_memory,
        )


NO_EXPERTS = ExpertUse()
