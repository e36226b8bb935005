"""Refuse a size that does not fit before anything is loaded, and suggest one that would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.loading.sizes import fitting_size_hint
from potluck.quantities import format_bytes
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.stage import StageSize

_NOTHING_FITS = (
    "it does not fit with a smaller --context, with --quant or with --mmap either; "
    "combine several machines with potluck up"
)


def combined(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """Return the total memory of stages on one unit in one process, which load one at a time."""
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
    """The usable memory of the machine, and of the unit if it has its own memory."""

    host: MemoryLimit
    device: MemoryLimit | None = None

    def holds(self, memory: MemoryPlan) -> bool:
        """Return whether ``memory`` fits."""
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

    ``memory`` is ``count(size)``; other sizes are counted to suggest one that would fit. The
    message begins with ``because``.
    """
    if room.holds(memory):
        return

    def fits(other: StageSize) -> bool:
        try:
            return room.holds(count(other))
        except ParameterError:  # not every backend can map weights
            return False

    needed, available, kind = memory.host_bytes, room.host, "memory"
    if room.device is not None and needed <= available.bytes:
        needed, available, kind = memory.device_bytes, room.device, "device memory"
    mapped = memory.mapped_bytes
    besides = f" in addition to {format_bytes(mapped)} of mapped weights" if mapped else ""
    raise InsufficientMemoryError(
        needed,
        available.bytes,
        f"{because}{format_bytes(needed)} of {kind} are needed{besides} "
        f"({memory.described()}), but only "
        f"{format_bytes(available.bytes)} may be used ({available.reason})",
        hint=fitting_size_hint(size, fits) or _NOTHING_FITS,
    )
