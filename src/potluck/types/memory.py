"""How much memory may be used, and what says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """``bytes`` may still be taken; ``reason`` says what sets the limit, for messages."""

    bytes: int
    reason: str
