"""How much memory may be used, what says so, and how much a stage is going to use."""

from __future__ import annotations

from dataclasses import dataclass

from potluck.quantities import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """``bytes`` may still be taken; ``reason`` says what sets the limit, for messages."""

    bytes: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPool:
    """Memory that a node draws on with others: the machine's, or that of a control group.

    ``pool_id`` is the same for all who draw on it. ``available_bytes`` of ``limit_bytes`` may
    still be taken.
    """

    pool_id: str
    limit_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """What a stage takes at most, in bytes, counted before any of it is allocated.

    ``weights`` are by format (label, bytes), as the engine holds them. ``mapped`` are those that
    stay in a file: they take no memory but what the kernel has to spare, and are in no sum here.
    ``cache_bytes`` are those of keys and values, ``state_bytes`` of all state slots.
    ``staging_bytes`` are held only while loading, ``process_bytes`` are a worker's own.
    ``is_on_device``: weights, cache, states, rope tables and scratch are in memory that is the
    device's own, and only the rest is the host's.
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
        """Of all formats, in memory."""
        return sum(num_bytes for _, num_bytes in self.weights)

    @property
    def mapped_bytes(self) -> int:
        """Of all formats, in a file."""
        return sum(num_bytes for _, num_bytes in self.mapped)

    @property
    def total_bytes(self) -> int:
        """Everything together that is to be in memory."""
        return sum(self.parts().values())

    @property
    def host_bytes(self) -> int:
        """Of it, what is to be in the machine's memory."""
        return self.total_bytes - self.device_bytes

    @property
    def device_bytes(self) -> int:
        """Of it, what is to be in the device's own memory."""
        if not self.is_on_device:
            return 0
        held_bytes = self.weights_bytes + self.cache_bytes + self.state_bytes
        return held_bytes + self.rope_bytes + self.scratch_bytes

    def parts(self) -> dict[str, int]:
        """The sizes by what they are for, as messages name them; nothing that is zero."""
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
        """The parts in one line."""
        return ", ".join(f"{name} {format_bytes(part)}" for name, part in self.parts().items())
