"""The output of ``children/intel_memory.py``: what Intel's drivers report. The reader
validates it.
"""

from __future__ import annotations

import msgspec


class IntelCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU's own memory, in bytes, 0 if it has none; ``free_bytes`` is None if not reported.

    ``address`` is that on the PCI bus: ``0000:03:00.0``.
    """

    address: str
    total_bytes: int
    free_bytes: int | None


class IntelDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The GPUs that responded, and one line for each that did not."""

    cards: list[IntelCard]
    problems: list[str] = []
