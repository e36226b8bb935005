"""How often experts that are mapped were in memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertUse:
    """Matrices of mapped experts that steps have used; ``num_in_memory`` of them were there.

    The others had to be read from the file. Both are 0 where no expert is mapped.
    """

    num_used: int = 0
    num_in_memory: int = 0

    def __add__(self, other: ExpertUse) -> ExpertUse:
        """That of several stages."""
        return ExpertUse(
            num_used=self.num_used + other.num_used,
            num_in_memory=self.num_in_memory + other.num_in_memory,
        )


NO_EXPERTS = ExpertUse()
