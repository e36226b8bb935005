"""Refusing what does not fit, before a byte is loaded, and saying what would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.placement.sizes import what_fits
from potluck.quantities import format_bytes
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.stage import StageSize

_NOTHING_FITS = (
    "no smaller --context, no --quant and no --mmap makes it fit; potluck up joins several machines"
)


def combined(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """What stages on one unit in one process take together; one of them loads at a time."""
    return MemoryPlan(
        weights=_by_format(plan.weights for plan in plans),
        mapped=_by_format(plan.mapped for plan in plans),
        cache_bytes=sum(plan.cache_bytes for plan in plans),
        state_bytes=sum(plan.state_bytes for plan in plans),
        rope_bytes=sum(plan.rope_bytes for plan in plans),
        scratch_bytes=sum(plan.scratch_bytes for plan in plans),
        staging_bytes=max((plan.staging_bytes for plan in plans), default=0),
        process_bytes=max((plan.process_bytes for plan in plans), default=0),
        is_on_device=any(plan.is_on_device for plan in plans),
    )


def _by_format(parts: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for part in parts:
        for label, num_bytes in part:
            sums[label] += num_bytes
    return tuple(sums.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What may be used: of the machine's memory, and of the unit's own if it has any."""

    host: MemoryLimit
    device: MemoryLimit | None = None

    def holds(self, memory: MemoryPlan) -> bool:
        """Whether ``memory`` fits."""
        has_device_room = self.device is None or memory.device_bytes <= self.device.bytes
        return has_device_room and memory.host_bytes <= self.host.bytes


def require_memory(
    memory: MemoryPlan,
    room: Room,
    size: StageSize,
    count: Callable[[StageSize], MemoryPlan],
    *,
    because: str = "",
) -> None:
    """Raise ``InsufficientMemoryError`` unless ``memory`` fits into ``room``.

    ``memory`` is ``count(size)``; other sizes are counted to say which would fit. The message
    begins with ``because``.
    """
    if room.holds(memory):
        return

    def fits(other: StageSize) -> bool:
        try:
            return room.holds(count(other))
        except ParameterError:  # not every backend can map weights
            return False

    needed, available, whose = memory.host_bytes, room.host, ""
    if room.device is not None and needed <= available.bytes:
        needed, available, whose = memory.device_bytes, room.device, " of the device"
    mapped = memory.mapped_bytes
    besides = f" besides {format_bytes(mapped)} of mapped weights" if mapped else ""
    raise InsufficientMemoryError(
        needed,
        available.bytes,
        f"{because}{format_bytes(needed)} of memory{whose} are needed{besides} "
        f"({memory.described()}), and "
        f"{format_bytes(available.bytes)} may be used ({available.reason})",
        hint=what_fits(size, fits) or _NOTHING_FITS,
    )
