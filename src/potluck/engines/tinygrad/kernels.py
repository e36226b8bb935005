"""Kernels over packed matrices: each packed byte is read once, and decoded in registers.

A matrix-vector product of a quantized matrix that tinygrad schedules by itself decodes every value
through a dozen index computations (``benchmarks/tinygrad_matvec.py`` has the figures); here the
loops are ours, and tinygrad only makes them code for the device. All arithmetic is float32, so
that no weight and no activation can overflow; where the device has f16 it decodes scales and f16
weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from potluck.engines.tinygrad.adapter import AxisType, KernelInfo, Ops, UOp
from potluck.engines.tinygrad.formats import DECODERS, Decoder, ToFloat, Values
from potluck.engines.tinygrad.layout import PANEL_ROWS, MatrixLayout

Kernel = Callable[..., UOp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a panel's rows, and the parts of a row, are spread over a device."""

    row_axis: AxisType
    panel_axis: AxisType
    num_parts: int
    """Threads that share a row of one token; a power of two."""
    num_token_parts: int
    """Threads that share a row of several tokens."""
    num_tokens: int
    """Tokens that a thread keeps sums of, and decodes a value once for."""


THREADS = Launch(
    row_axis=AxisType.LOCAL,
    panel_axis=AxisType.GLOBAL,
    num_parts=8,
    num_token_parts=4,
    num_tokens=32,
)
"""A GPU: one thread per row and part of it, 128 in a group (some GPUs take no more than 384), and
sums of 32 tokens in registers, of which the smallest GPUs have 64."""

VECTORS = Launch(
    row_axis=AxisType.UPCAST,
    panel_axis=AxisType.GLOBAL,
    num_parts=1,
    num_token_parts=1,
    num_tokens=4,
)
"""OpenCL on a CPU: a panel is a group of one thread, its rows the elements of vectors."""

LOOPS = dataclasses.replace(VECTORS, panel_axis=AxisType.WEAK)
"""A CPU without groups: panels are gone through one after another."""


def narrowed(launch: Launch, max_group: int) -> Launch:
    """For a device whose groups have at most so many threads."""
    most = _largest_divisor(2**16, max(1, max_group // PANEL_ROWS))
    return dataclasses.replace(
        launch,
        num_parts=min(launch.num_parts, most),
        num_token_parts=min(launch.num_token_parts, most),
    )


def linear_kernel(
    layout: MatrixLayout, num_tokens: int, launch: Launch, to_float: ToFloat
) -> Kernel:
    """``out[t, panel, row] = sum over k of weight[16 * panel + row, k] * x[k, t]``, float32.

    Takes the buffers out, words, halves (where the format has them) and x.
    """

    def kernel(out: UOp, words: UOp, *others: UOp) -> UOp:
        x = others[-1]
        ids = itertools.count()
        decoder = DECODERS[layout.format]
        panel = UOp.range(layout.num_panels, next(ids), launch.panel_axis)
        row = UOp.range(PANEL_ROWS, next(ids), launch.row_axis)
        tile = _largest_divisor(num_tokens, launch.num_tokens)
        tiles = UOp.range(num_tokens // tile, next(ids), launch.panel_axis)
        within = UOp.range(tile, next(ids), AxisType.UPCAST)
        token = tiles * tile + within
        parts = launch.num_parts if num_tokens == 1 else launch.num_token_parts
        num_shared = 0
        for size in decoder.loops[:-1]:
            # Threads share blocks of 256 first, of which a row may have an odd number.
            if parts >= size:
                parts //= size
                num_shared += 1
        parts = _largest_divisor(layout.num_blocks, parts)
        outer = _loop(layout.num_blocks // parts, next(ids), AxisType.REDUCE)
        part = _loop(parts, next(ids), AxisType.GROUP_REDUCE)
        block = outer * parts + part
        loops = tuple(
            _loop(size, next(ids), AxisType.GROUP_REDUCE if i < num_shared else AxisType.REDUCE)
            for i, size in enumerate(decoder.loops)
        )
        values = _unit(layout, decoder, words, others[:-1], panel, row, block, loops, to_float)
        first = block * layout.block.num_elements

        def x_at(place: UOp | int) -> UOp:
            return x[first + place, token]

        if num_tokens == 1:
            total = _sum([_scaled_sum(each, x_at, loops[-1:]) for each in values])
            total = _reduced(total, outer, part, *loops[:-1])
        else:
            products = [
                value * x_at(place)
                for each in values
                for value, place in zip(_decoded(each), each.places, strict=True)
            ]
            total = _reduced(_sum(products), outer, part, *loops)
        store = out[token, panel, row].store(total)
        name = f"linear_{layout.format.label}_{num_tokens}"
        return store.end(panel, row, tiles, within).sink(
            arg=KernelInfo(name=name, opts_to_apply=())
        )

    return kernel


def rows_kernel(layout: MatrixLayout, num_tokens: int, launch: Launch, to_float: ToFloat) -> Kernel:
    """``out[t, k] = weight[tokens[t], k]``, float32, for k up to ``padded_columns``.

    Takes the buffers out, words, halves (where the format has them) and tokens, which are int32.
    """

    def kernel(out: UOp, words: UOp, *others: UOp) -> UOp:
        tokens = others[-1]
        ids = itertools.count()
        decoder = DECODERS[layout.format]
        token = UOp.range(num_tokens, next(ids), launch.panel_axis)
        block = UOp.range(layout.num_blocks, next(ids), launch.panel_axis)
        loops = tuple(UOp.range(size, next(ids), launch.panel_axis) for size in decoder.loops)
        index = tokens[token].cast(tokens.dtype)
        panel, row = index // PANEL_ROWS, index % PANEL_ROWS
        values = _unit(layout, decoder, words, others[:-1], panel, row, block, loops, to_float)
        first = block * layout.block.num_elements
        stores = [
            out[token, first + place].store(value)
            for each in values
            for value, place in zip(_decoded(each), each.places, strict=True)
        ]
        return (
            UOp.group(*stores)
            .end(token, block, *loops)
            .sink(arg=KernelInfo(name=f"rows_{layout.format.label}", opts_to_apply=()))
        )

    return kernel


def _unit(
    layout: MatrixLayout,
    decoder: Decoder,
    words: UOp,
    halves: tuple[UOp, ...],
    panel: UOp,
    row: UOp,
    block: UOp,
    loops: tuple[UOp, ...],
    to_float: ToFloat,
) -> tuple[Values, ...]:
    num_words = layout.block.num_words

    def word(index: UOp | int) -> UOp:
        return words[panel, block * num_words + index, row]

    def half(index: UOp | int) -> UOp:
        return halves[0][panel, block + index, row]

    return decoder.unit(word, half, to_float, loops)


def _decoded(values: Values) -> list[UOp]:
    decoded = list(values.numbers)
    if values.scale is not None:
        decoded = [number * values.scale for number in decoded]
    if values.minimum is not None:
        decoded = [number + values.minimum for number in decoded]
    return decoded


def _scaled_sum(values: Values, x_at: Callable[[UOp | int], UOp], loop: tuple[UOp, ...]) -> UOp:
    """The products of the last loop, summed before they are scaled."""
    xs = [x_at(place) for place in values.places]
    total = _sum([number * x for number, x in zip(values.numbers, xs, strict=True)])
    total = _reduced(total, *loop)
    if values.scale is not None:
        total = total * values.scale
    if values.minimum is not None:
        total = total + values.minimum * _reduced(_sum(xs), *loop)
    return total


def _loop(size: int, number: int, axis: AxisType) -> UOp:
    """A loop to sum over; one of a single round is none."""
    return UOp.range(size, number, axis) if size > 1 else UOp.const(0)


def _reduced(term: UOp, *loops: UOp) -> UOp:
    """The sum over loops."""
    several = [loop for loop in loops if loop.op is Ops.RANGE]
    return term.reduce(*several, arg=Ops.ADD) if several else term


def _sum(terms: list[UOp]) -> UOp:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _largest_divisor(number: int, at_most: int) -> int:
    """The largest divisor of ``number`` that is a power of two and at most ``at_most``."""
    divisor = 1
    while divisor * 2 <= at_most and number % (divisor * 2) == 0:
        divisor *= 2
    return divisor
