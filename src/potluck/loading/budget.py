"""Refusing what does not fit, before a byte is loaded, and saying what would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from potluck.errors import InsufficientMemoryError
from potluck.loading.plan import StageSize
from potluck.quantities import format_bytes
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.quantization import Quantization

_LEAST_CONTEXT_TOKENS = 256
"""A shorter context is not proposed: it would hold little more than a question."""


_NOTHING_FITS = (
    "no smaller --context and no --quant makes it fit; potluck up joins several machines"
)


def combined(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """What stages in one process take together; one of them loads at a time."""
    return MemoryPlan(
        weights=_by_format(plan.weights for plan in plans),
        mapped=_by_format(plan.mapped for plan in plans),
        cache_bytes=sum(plan.cache_bytes for plan in plans),
        rope_bytes=sum(plan.rope_bytes for plan in plans),
        scratch_bytes=sum(plan.scratch_bytes for plan in plans),
        staging_bytes=max((plan.staging_bytes for plan in plans), default=0),
        process_bytes=max((plan.process_bytes for plan in plans), default=0),
    )


def _by_format(parts: Iterable[tuple[tuple[str, int], ...]]) -> tuple[tuple[str, int], ...]:
    sums: Counter[str] = Counter()
    for part in parts:
        for label, num_bytes in part:
            sums[label] += num_bytes
    return tuple(sums.items())


def require_memory(
    memory: MemoryPlan,
    available: MemoryLimit,
    size: StageSize,
    count: Callable[[StageSize], MemoryPlan],
    *,
    because: str = "",
) -> None:
    """Raise ``InsufficientMemoryError`` unless ``memory`` fits into ``available``.

    ``memory`` is ``count(size)``; other sizes are counted to say which would fit. The message
    begins with ``because``.
    """
    if memory.total_bytes <= available.bytes:
        return

    def fits(other: StageSize) -> bool:
        return count(other).total_bytes <= available.bytes

    mapped = memory.mapped_bytes
    besides = f" besides {format_bytes(mapped)} of mapped weights" if mapped else ""
    raise InsufficientMemoryError(
        memory.total_bytes,
        available.bytes,
        f"{because}{format_bytes(memory.total_bytes)} of memory are needed{besides} "
        f"({memory.described()}), and "
        f"{format_bytes(available.bytes)} may be used ({available.reason})",
        hint=what_fits(size, fits) or _NOTHING_FITS,
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
