"""Sizes of stages that fit: on another unit, with a shorter context or fewer states, or quantized.

A size that does not fit is refused before anything is loaded, with a suggestion of one that would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

from potluck.errors import InsufficientMemoryError, ParameterError
from potluck.scheduling.blocks import blocks_for
from potluck.types.arithmetic import Arithmetic
from potluck.types.backend import BackendAbilities
from potluck.types.memory import MemoryLimit, MemoryPlan
from potluck.types.quantities import format_bytes
from potluck.types.quantization import AUTOMATIC
from potluck.types.ranges import DEFAULT_CACHE_CONTEXTS
from potluck.types.stage import StageSize
from potluck.types.step import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from potluck.types.node import UnitReport


_LEAST_CONTEXT_TOKENS = 256
"""A shorter context is not suggested: it would hold little more than a question."""

LEAST_STATES = 2
"""One for a sequence and one for a checkpoint; fewer slots are not suggested."""

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


def on_unit(size: StageSize, unit: UnitReport, abilities: BackendAbilities) -> StageSize:
    """Return ``size`` for a stage on ``unit``, whose backend has these abilities.

    Unsupported options are dropped: weights are loaded instead of mapped, and the arithmetic is
    left to the backend.
    """
    return replace(
        size,
        num_threads=unit.max_threads,
        backend=unit.backend,
        is_on_device=not unit.is_shared,
        is_mapped=size.is_mapped and abilities.maps_weights,
        arithmetic=size.arithmetic if abilities.has_arithmetics else Arithmetic.EXACT,
        has_arithmetics=abilities.has_arithmetics,
    )


def fitting_size_hint(
    size: StageSize, fits: Callable[[StageSize], bool], *, least_states: int = LEAST_STATES
) -> str:
    """Return a hint that names a cache, a number of states and a quantization that would fit.

    Each is suggested by itself if it suffices, as are mapped weights; otherwise as few of them
    together as fit, with mapped weights only as a last resort. The hint is empty if nothing fits.
    ``least_states`` are needed for the requested number of concurrent sequences.
    """
    least = max(least_states, LEAST_STATES)

    def fewer(size: StageSize) -> Iterator[StageSize]:
        return fewer_states(size, least)

    def fewest(size: StageSize) -> Iterator[StageSize]:
        yield from list(fewer(size))[-1:]

    alone = [
        _options(size, found)
        for smaller in (smaller_caches, fewer, stronger_quantizations, mapped)
        if (found := next((each for each in smaller(size) if fits(each)), None)) is not None
    ]
    if alone:
        return _would_fit(alone)
    # Every size takes a while to count, so in combinations only the fewest states are tried.
    ways = (smaller_caches, fewest, stronger_quantizations)
    without_weights = (smaller_caches, fewest)
    with_mapped = ((mapped, way) for way in without_weights)
    for together in (*combinations(ways, 2), ways, *with_mapped, (mapped, *without_weights)):
        sizes: Iterable[StageSize] = [size]
        for smaller in reversed(together):
            sizes = [each for other in sizes for each in smaller(other)]
        smallest = next((each for each in sizes if fits(each)), None)
        if smallest is not None:
            return _would_fit([_options(size, smallest)])
    return ""


def smaller_caches(size: StageSize) -> Iterator[StageSize]:
    """Yield the same size with smaller caches, the largest first.

    A cache of the default size shrinks with the context. One that was chosen shrinks to a single
    context first.
    """
    if _has_default_cache(size):
        yield from _smaller_contexts(size)
        return
    least, num_blocks = blocks_for(size.context_tokens), size.num_blocks
    while num_blocks > least:
        num_blocks = max(least, num_blocks // 2)
        yield replace(size, num_blocks=num_blocks)
    yield from _smaller_contexts(replace(size, num_blocks=least))


def _has_default_cache(size: StageSize) -> bool:
    return size.num_blocks in (
        blocks_for(num_contexts * size.context_tokens)
        for num_contexts in (1, DEFAULT_CACHE_CONTEXTS)  # of a local model, and of a deployment
    )


def _smaller_contexts(size: StageSize) -> Iterator[StageSize]:
    """Yield the same size with half the context, a quarter …; the cache shrinks with it."""
    context = size.context_tokens
    while (context := context // 2) >= _LEAST_CONTEXT_TOKENS:
        yield replace(
            size,
            context_tokens=context,
            num_blocks=-(-size.num_blocks * context // size.context_tokens),
            max_step_tokens=min(size.max_step_tokens, context),
        )


def fewer_states(size: StageSize, least: int = LEAST_STATES) -> Iterator[StageSize]:
    """Yield the same size with half the state slots, a quarter …, and ``least`` at last.

    Yields nothing for a model without state.
    """
    num_states = size.num_states
    while num_states > least:
        num_states = max(least, num_states // 2)
        yield replace(size, num_states=num_states)


def stronger_quantizations(size: StageSize) -> Iterator[StageSize]:
    """Yield the size in every smaller quantization of ``AUTOMATIC``, the most precise first."""
    if size.quantization not in AUTOMATIC:
        return
    ordered = AUTOMATIC
    for quantization in ordered[ordered.index(size.quantization) + 1 :]:
        yield replace(size, quantization=quantization)


def quantized_to_fit(size: StageSize, fits: Callable[[StageSize], bool]) -> StageSize:
    """Return the size in the most precise quantization that ``fits``, else in the smallest."""
    sizes = [size, *stronger_quantizations(size)]
    return next(filter(fits, sizes), sizes[-1])


def mapped(size: StageSize) -> Iterator[StageSize]:
    """Yield the size with weights in a mapped file, which need not all be in memory at once."""
    if not size.is_mapped:
        yield replace(size, is_mapped=True)


def _would_fit(options: Sequence[str]) -> str:
    names = " or ".join(options)
    condition = " (--mmap: given enough disk space)" if "--mmap" in names else ""
    return f"{names} would fit{condition}"


def _options(size: StageSize, smaller: StageSize) -> str:
    """Return the options that turn ``size`` into ``smaller``."""
    options = []
    if smaller.quantization is not size.quantization:
        options.append(f"--quant {smaller.quantization.value}")
    if smaller.context_tokens != size.context_tokens:
        options.append(f"--context {smaller.context_tokens}")
    if smaller.num_blocks != size.num_blocks and not _has_default_cache(size):
        options.append(f"--cache {smaller.num_blocks * KV_BLOCK_TOKENS}")
    if smaller.num_states != size.num_states:
        options.append(f"--states {smaller.num_states}")
    if smaller.is_mapped != size.is_mapped:
        options.append("--mmap")
    return " ".join(options)
