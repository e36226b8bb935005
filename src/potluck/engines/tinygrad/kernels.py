"""Kernels over packed matrices: each packed byte is read once, and decoded in registers.

tinygrad's own schedule of a matrix-vector product with a quantized matrix decodes every value
through a dozen index computations (``benchmarks/tinygrad_matvec.py`` has the figures); here the
loops are written by hand, and tinygrad only generates code for the device. All arithmetic is
float32, so that neither weights nor activations can overflow; if the device has f16, it is used to
decode scales and f16 weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from potluck.engines.tinygrad.adapter import AxisType, KernelInfo, Ops, UOp
from potluck.engines.tinygrad.formats import DECODERS, Decoder, ToFloat, Values
from potluck.engines.tinygrad.layout import PANEL_ROWS, MatrixLayout
from potluck.types.tensor import TensorFormat

Kernel = Callable[..., UOp]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a panel's rows, and the parts of a row, are distributed over a device.

    Parts and tokens are powers of two.
    """

    row_axis: AxisType
    panel_axis: AxisType
    num_parts: int
    """Threads that share a row for one token."""
    num_token_parts: int
    """Threads that share a row for several tokens."""
    num_tokens: int
    """Tokens for which a thread keeps sums, so that it decodes a value once for all of them."""
    busy_threads: int = 0
    """Threads that occupy the device. A product with fewer rows than that distributes them more
    finely, up to the following limits."""
    max_parts: int = 32
    max_token_parts: int = 8
    min_tokens: int = 8


THREADS = Launch(
    row_axis=AxisType.LOCAL,
    panel_axis=AxisType.GLOBAL,
    num_parts=8,
    num_token_parts=4,
    num_tokens=32,
)
"""A GPU: one thread per row and part of it, 128 in a group (some GPUs support at most 384), and
sums of 32 tokens in registers, of which the smallest GPUs have 64."""

VECTORS = Launch(
    row_axis=AxisType.UPCAST,
    panel_axis=AxisType.GLOBAL,
    num_parts=1,
    num_token_parts=1,
    num_tokens=4,
)
"""OpenCL on a CPU: a panel is a group of one thread, and its rows are the elements of vectors."""

LOOPS = dataclasses.replace(VECTORS, panel_axis=AxisType.WEAK)
"""A CPU without groups: panels are processed one after another."""

THREADS_PER_UNIT = 1024
"""Threads that occupy one of a GPU's multiprocessors. On an H100, products of 2,048 to 14,336 rows
were fastest with 65,000 to 230,000 threads on its 132 (`benchmarks/gpu_launches.py`)."""


def for_units(launch: Launch, num_units: int) -> Launch:
    """Return a variant for a device with so many multiprocessors (OpenCL's compute units)."""
    return dataclasses.replace(launch, busy_threads=num_units * THREADS_PER_UNIT)


def narrowed(launch: Launch, max_group: int) -> Launch:
    """Return a variant for a device with a limited group size."""
    most = _largest_divisor(2**16, max(1, max_group // PANEL_ROWS))
    return dataclasses.replace(
        launch,
        num_parts=min(launch.num_parts, most),
        num_token_parts=min(launch.num_token_parts, most),
        max_parts=min(launch.max_parts, most),
        max_token_parts=min(launch.max_token_parts, most),
    )


def distribution(
    launch: Launch, format: TensorFormat, num_rows: int, num_tokens: int
) -> tuple[int, int]:
    """Return the tokens per thread, and the threads that share a row.

    Rows of K formats are not divided further: their blocks of 256 are large, and threads that share
    a row read places that are far apart. On an H100, that halves their speed.
    """
    tile = _largest_divisor(num_tokens, launch.num_tokens)
    has_large_blocks = len(DECODERS[format].loops) > 1
    if num_tokens == 1:
        parts, most = launch.num_parts, launch.max_parts
    else:
        parts, most = launch.num_token_parts, launch.max_token_parts
    if has_large_blocks:
        most = parts
    num_threads = num_rows * parts * (num_tokens // tile)
    while num_threads < launch.busy_threads and tile > launch.min_tokens:
        tile, num_threads = tile // 2, num_threads * 2
    while num_threads < launch.busy_threads and parts < most:
        parts, num_threads = parts * 2, num_threads * 2
    return tile, parts


def linear_kernel(
    layout: MatrixLayout, num_tokens: int, launch: Launch, to_float: ToFloat
) -> Kernel:
    """Compute ``out[t, panel, row] = sum over k of weight[16 * panel + row, k] * x[k, t]`` in
    float32.

    The buffers are out, words, halves (if the format has them) and x.
    """

    def kernel(out: UOp, words: UOp, *others: UOp) -> UOp:
        x = others[-1]
        ids = itertools.count()
        decoder = DECODERS[layout.info.format]
        panel = UOp.range(layout.num_panels, next(ids), launch.panel_axis)
        row = UOp.range(PANEL_ROWS, next(ids), launch.row_axis)
        num_rows = layout.num_panels * PANEL_ROWS
        tile, parts = distribution(launch, layout.info.format, num_rows, num_tokens)
        tiles = UOp.range(num_tokens // tile, next(ids), launch.panel_axis)
        within = UOp.range(tile, next(ids), AxisType.UPCAST)
        token = tiles * tile + within
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
        name = f"linear_{layout.info.format.label}_{num_tokens}"
        return store.end(panel, row, tiles, within).sink(
            arg=KernelInfo(name=name, opts_to_apply=())
        )

    return kernel


def rows_kernel(layout: MatrixLayout, num_tokens: int, launch: Launch, to_float: ToFloat) -> Kernel:
    """Compute ``out[t, k] = weight[tokens[t], k]`` in float32, for k up to ``padded_columns``.

    The buffers are out, words, halves (if the format has them) and tokens, which are int32.
    """

    def kernel(out: UOp, words: UOp, *others: UOp) -> UOp:
        tokens = others[-1]
        ids = itertools.count()
        decoder = DECODERS[layout.info.format]
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
            .sink(arg=KernelInfo(name=f"rows_{layout.info.format.label}", opts_to_apply=()))
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
    """Return the products of the last loop, summed before they are scaled."""
    xs = [x_at(place) for place in values.places]
    total = _sum([number * x for number, x in zip(values.numbers, xs, strict=True)])
    total = _reduced(total, *loop)
    if values.scale is not None:
        total = total * values.scale
    if values.minimum is not None:
        total = total + values.minimum * _reduced(_sum(xs), *loop)
    return total


def _loop(size: int, number: int, axis: AxisType) -> UOp:
    """Return a loop to sum over; none for a single iteration."""
    return UOp.range(size, number, axis) if size > 1 else UOp.const(0)


def _reduced(term: UOp, *loops: UOp) -> UOp:
    """Return the sum over loops."""
    several = [loop for loop in loops if loop.op is Ops.RANGE]
    return term.reduce(*several, arg=Ops.ADD) if several else term


def _sum(terms: list[UOp]) -> UOp:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _largest_divisor(number: int, at_most: int) -> int:
    """Return the largest divisor of ``number`` that is a power of two and at most ``at_most``."""
    divisor = 1
    while divisor * 2 <= at_most and number % (divisor * 2) == 0:
        divisor *= 2
    return divisor
