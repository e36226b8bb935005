"""What ``children/intel_memory.py`` prints: what Intel's drivers told; judged by who reads it."""

from __future__ import annotations

import msgspec


class IntelCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Memory of a GPU's own, in bytes, 0 if it has none; ``free_bytes`` is None where not told.

    ``address`` is that on the PCI bus: ``0000:03:00.0``.
    """

    address: str
    total_bytes: int
    free_bytes: int | None


class IntelDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPUs that answered, and one line for each that did not."""

    cards: list[IntelCard]
    problems: list[str] = []
