"""Limits the work of a search by the number of array elements: without a clock, results repeat."""

from __future__ import annotations

DEFAULT_ELEMENTS = 800_000_000
"""About a second of one core: ``benchmarks/solver.py`` shows 0.6 to 1.5 elements per ns."""


class Budget:
    """Elements that may still be computed. Not thread-safe; one search has one budget."""

    def __init__(self, num_elements: int = DEFAULT_ELEMENTS) -> None:
        self._left = num_elements

    def spend(self, num_elements: int) -> None:
        """Count elements that are about to be computed."""
        self._left -= num_elements

    @property
    def left(self) -> int:
        """Return how many are left; 0 if more were spent than available."""
        return max(0, self._left)

    @property
    def is_spent(self) -> bool:
        """Return whether nothing is left."""
        return self._left <= 0
