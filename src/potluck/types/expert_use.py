"""Statistics on how often mapped experts were already in memory."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.documents.base import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUse:
    """The use of mapped experts by all steps so far; 0 if no expert is mapped."""

    num_used: Count = 0
    """Number of matrices of mapped experts that steps used."""
    num_in_memory: Count = 0
    """Number of them that were in memory; the others had to be read from the file."""

    def __add__(self, other: ExpertUse) -> ExpertUse:
        """Return the totals of both."""
        return ExpertUse(
            num_used=self.num_used + other.num_used,
            num_in_memory=self.num_in_memory + other.num_in_memory,
        )


NO_EXPERTS = ExpertUse()
