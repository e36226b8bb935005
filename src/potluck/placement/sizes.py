"""Other sizes of a stage: on some unit, with a shorter context, or quantized further."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from potluck.types.abilities import BackendAbilities
from potluck.types.arithmetic import Arithmetic
from potluck.types.node import UnitReport
from potluck.types.quantization import AUTOMATIC
from potluck.types.stage import StageSize

_LEAST_CONTEXT_TOKENS = 256
"""A shorter context is not proposed: it would hold little more than a question."""


def on_unit(size: StageSize, unit: UnitReport, abilities: BackendAbilities) -> StageSize:
    """Return ``size`` for a stage on ``unit``, whose backend has these abilities.

    What it cannot do is left out: weights are loaded, not mapped, and no arithmetic is asked for.
    """
    return replace(
        size,
        num_threads=unit.num_threads,
        backend=unit.backend,
        is_on_device=not unit.is_shared,
        is_mapped=size.is_mapped and abilities.maps_weights,
        arithmetic=size.arithmetic if abilities.has_arithmetics else Arithmetic.EXACT,
        has_arithmetics=abilities.has_arithmetics,
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
    """The same in every quantization of ``AUTOMATIC`` that is smaller, the most precise first."""
    if size.quantization not in AUTOMATIC:
        return
    ordered = AUTOMATIC
    for quantization in ordered[ordered.index(size.quantization) + 1 :]:
        yield replace(size, quantization=quantization)


def _option(size: StageSize) -> str:
    return f"--quant {size.quantization.value}"
