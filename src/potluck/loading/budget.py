"""Refusing what does not fit, before a byte is loaded, and saying what would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from potluck.errors import InsufficientMemoryError
from potluck.quantities import format_bytes
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.quantization import Quantization
from potluck.types.stage import StageSize

_LEAST_CONTEXT_TOKENS = 256
"""A shorter context is not proposed: it would hold little more than a question."""


_NOTHING_FITS = (
    "no smaller --context and no --quant makes it fit; potluck up joins several machines"
)


def combined(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """What stages on one unit in one process take together; one of them loads at a time."""
    return MemoryPlan(
        weights=_by_format(plan.weights for plan in plans),
        mapped=_by_format(plan.mapped for plan in plans),
        cache_bytes=sum(plan.cache_bytes for plan in plans),
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
        hint=what_fits(size, lambda other: room.holds(count(other))) or _NOTHING_FITS,
    )


def what_fits(size: StageSize, fits: Callable[[StageSize], bool]) -> str:
    """A hint that names a context and a quantization that would fit, each by itself if it can.

    Empty if nothing does.
    """
    context = next((each for each in smaller_contexts(size) if fits(each)), None)
    quantized = next((each for each in stronger_quantizations(size) if fits(each)), None)
    if context is None and quantized is None:
        both = (each for other in stronger_quantizations(size) for each in smaller_contexts(other))
        smallest = next((each for each in both if fits(each)), None)
        if smallest is None:
            return ""
        return f"{_option(smallest)} --context {smallest.context_tokens} would fit"
    options = []
    if context is not None:
        options.append(f"--context {context.context_tokens}")
    if quantized is not None:
        options.append(_option(quantized))
    return f"{' or '.join(options)} would fit"


def smaller_contexts(size: StageSize) -> Iterator[StageSize]:
    """The same with half the context, a quarter …; the cache shrinks with it."""
    context = size.context_tokens
    while (context := context // 2) >= _LEAST_CONTEXT_TOKENS:
        yield replace(
            size,
            context_tokens=context,
            num_blocks=-(-size.num_blocks * context // size.context_tokens),
            max_step_tokens=min(size.max_step_tokens, context),
        )


def stronger_quantizations(size: StageSize) -> Iterator[StageSize]:
    """The same in every quantization that is smaller, the most precise first."""
    ordered = list(Quantization)
    for quantization in ordered[ordered.index(size.quantization) + 1 :]:
        yield replace(size, quantization=quantization)


def _option(size: StageSize) -> str:
    return f"--quant {size.quantization.value}"
