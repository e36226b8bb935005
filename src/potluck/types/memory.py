"""The usable memory, the reason for its limit, and the memory requirements of a stage."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.types.document import Count, NonEmpty
from potluck.types.quantities import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """The number of ``bytes`` that may still be used, and the ``reason`` for messages."""

    bytes: Count
    reason: NonEmpty


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPool:
    """Memory that nodes may share: the machine's, or that of a control group.

    ``pool_id`` is the same on all nodes that share it. ``available_bytes`` of ``limit_bytes`` are
    still available.
    """

    pool_id: str
    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """The maximum memory use of a stage, in bytes, computed before any of it is allocated.

    ``weights`` are by format (label, bytes), as the engine holds them. ``mapped`` weights stay in a
    file: they only use memory that the kernel can evict, and are not included in the totals.
    ``cache_bytes`` is for keys and values, and ``state_bytes`` for all state slots.
    ``staging_bytes`` is only used during loading; ``process_bytes`` is the worker's own. If
    ``is_on_device``, weights, cache, states, rope tables and scratch are in the device's own
    memory, and only the rest is in the host's.
    """

    weights: tuple[tuple[str, int], ...]
    cache_bytes: int
    rope_bytes: int
    scratch_bytes: int
    staging_bytes: int
    process_bytes: int = 0
    mapped: tuple[tuple[str, int], ...] = ()
    is_on_device: bool = False
    state_bytes: int = 0

    @property
    def weights_bytes(self) -> int:
        """The size of the weights of all formats in memory."""
        return sum(num_bytes for _, num_bytes in self.weights)

    @property
    def mapped_bytes(self) -> int:
        """The size of the mapped weights of all formats."""
        return sum(num_bytes for _, num_bytes in self.mapped)

    @property
    def total_bytes(self) -> int:
        """The total memory, without mapped weights."""
        return sum(self.parts().values())

    @property
    def host_bytes(self) -> int:
        """The part of the total in the machine's memory."""
        return self.total_bytes - self.device_bytes

    @property
    def device_bytes(self) -> int:
        """The part of the total in the device's own memory."""
        if not self.is_on_device:
            return 0
        held_bytes = self.weights_bytes + self.cache_bytes + self.state_bytes
        return held_bytes + self.rope_bytes + self.scratch_bytes

    def parts(self) -> dict[str, int]:
        """Return the sizes by purpose, for messages, without those that are zero."""
        parts = {f"{label} weights": num_bytes for label, num_bytes in self.weights}
        parts |= {
            "cache": self.cache_bytes,
            "states": self.state_bytes,
            "rope tables": self.rope_bytes,
            "scratch": self.scratch_bytes,
            "staging": self.staging_bytes,
            "process": self.process_bytes,
        }
        return {name: num_bytes for name, num_bytes in parts.items() if num_bytes}

    def described(self) -> str:
        """Return the parts in one line."""
        return ", ".join(f"{name} {format_bytes(part)}" for name, part in self.parts().items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """The machine's memory: the total, the free part, and the effective limit with its reason."""

    total_bytes: Count
    free_bytes: Count
    reserve_bytes: Count
    """Left to the system: subtracted from ``usable`` if the machine's memory is the limit."""
    usable: MemoryLimit
