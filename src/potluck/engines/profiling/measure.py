"""Measure how fast an engine is on this machine: bytes read, operations in products, tokens.

Measurements cover whole steps of an engine, with the threads that it will have. The best of several
rounds is used, because other load on the machine can only make a round slower. Rates refer to the
time in which threads may run: a CPU quota (``UnitReport.usable_cores``) is not taken into account.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potluck.engines.profiling import rate_program
from potluck.engines.profiling.rate_program import (
    Stopwatch,
    best_seconds,
    load_weight,
    lone_step,
    random_rows,
)
from potluck.types.engine import LoadableEngine, MakeEngine
from potluck.types.program import HIDDEN, Linear, Program, Register, Shard, WeightSpec
from potluck.types.quantities import format_bytes
from potluck.types.tensor import TensorFormat, TensorInfo

_RATE_WIDTH = 1024
"""With two matrices of 1024 × 1024, a step of 128 tokens has 0.54 G operations: on a server's cores
of 2.6 GHz, 1.7 ms with AVX-512 on two, and 0.4 s without vectors on one. With twice the matrices,
the rate is the same to within a percent."""

_READ_WIDTH = 4096
"""Rows and columns of the matrices that are read; 18 MB each in Q8_0."""
_LEAST_READ_BYTES = 128 << 20
"""Used if the size of the last-level cache is unknown: most have less than 64 MiB."""
_FILL_SECONDS = 0.6
"""Time for generating weights to read: 500 to 700 MiB on those two cores, 200 if the host of a
virtual machine has to allocate the memory first."""

_NUM_PASSES = 4
_SLOT_SECONDS = 0.04
"""Every figure is measured in four turns, so that a disturbance of one turn does not affect the
result."""
_MEASURE_SECONDS = 0.7
"""Time after which no further turn starts, if a single step takes longer than a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One figure: engines that run one after the other, and the amount of work of one round.

    ``amount`` is in operations or bytes.
    """

    figure: str
    engines: tuple[LoadableEngine, ...]
    num_tokens: int
    width: int
    amount: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSetup:
    """The engines to measure.

    ``make_engine`` creates engines for most figures, and ``makers`` those for single figures.
    ``formats`` has the weights of the matrix products by the name of their figure, and
    ``num_tokens`` is the number of tokens per step. ``cache_bytes`` is the size of the last-level
    cache before its memory, None if unknown. ``ending`` is appended to every source and describes
    the unit: ``2 threads, avx2``. The ``stopwatch`` knows how many threads of this process compute.
    """

    make_engine: MakeEngine
    formats: Mapping[str, TensorFormat]
    num_tokens: int
    cache_bytes: int | None
    ending: str
    makers: Mapping[str, MakeEngine] = field(default_factory=dict)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


def measure(
    setup: MeasurementSetup, max_weights_bytes: int, on_progress: Callable[[float], None]
) -> dict[str, dict[str, dict[str, object]]]:
    """Return the value and source of ``figures`` and ``rates``, by field of ``Figures`` and
    ``Rates``.

    At most ``max_weights_bytes`` of weights exist at a time, but at least one matrix or layer;
    those of the products take 15 MB. It takes less than 2.5 s in total, in addition to the engine's
    compilation, unless a step takes more than half a second.
    """
    figures = _figures(setup, max_weights_bytes, lambda done: on_progress(0.6 * done))
    rates = rate_program.measure_rates(
        setup.make_engine,
        max_weights_bytes,
        setup.ending,
        lambda done: on_progress(0.6 + 0.4 * done),
        setup.stopwatch,
    )
    return {"figures": figures, "rates": rates}


def print_progress(fraction: float) -> None:
    """Print the progress of a child process for ``probe.trials.running``."""
    print(json.dumps({"progress": round(fraction, 3)}), flush=True)  # noqa: T201 - for the parent


def _figures(
    setup: MeasurementSetup, max_weights_bytes: int, on_progress: Callable[[float], None]
) -> dict[str, dict[str, object]]:
    works = [_rate(setup, figure, fmt) for figure, fmt in setup.formats.items()]
    works.append(_read(setup, max_weights_bytes, lambda done: on_progress(0.1 + 0.4 * done)))
    best = [math.inf] * len(works)
    end = time.perf_counter() + _MEASURE_SECONDS
    for number in range(_NUM_PASSES * len(works)):
        if number >= len(works) and time.perf_counter() >= end:
            break
        index = number % len(works)
        work = works[index]
        seconds = best_seconds(
            work.engines, lone_step(work.num_tokens), work.width, _SLOT_SECONDS, setup.stopwatch
        )
        best[index] = min(best[index], seconds)
        on_progress(0.5 + 0.5 * (number + 1) / (_NUM_PASSES * len(works)))
    for work in works:
        for engine in work.engines:
            engine.close()
    return {
        work.figure: {"value": work.amount / seconds, "source": work.source}
        for work, seconds in zip(works, best, strict=True)
    }


def _rate(setup: MeasurementSetup, figure: str, fmt: TensorFormat) -> _Work:
    """Measure matrix products with many tokens: the weights come from caches. A multiply-add counts
    as two.
    """
    num_matrices, num_tokens = 2, setup.num_tokens
    make_engine = setup.makers.get(figure, setup.make_engine)
    in_fast = ", fast" if figure in setup.makers else ""
    rows = random_rows(fmt, _RATE_WIDTH, _RATE_WIDTH)
    return _Work(
        figure=figure,
        engines=(_chain(make_engine, rows, fmt, _RATE_WIDTH, num_matrices, num_tokens),),
        num_tokens=num_tokens,
        width=_RATE_WIDTH,
        amount=2 * num_tokens * _RATE_WIDTH * _RATE_WIDTH * num_matrices,
        source=f"{fmt.name} matrix product{in_fast}, {num_tokens} tokens, {setup.ending}",
    )


def _read(
    setup: MeasurementSetup, max_weights_bytes: int, on_progress: Callable[[float], None]
) -> _Work:
    """Measure products with one token, as in decoding: every weight is read once per round."""
    fmt = TensorFormat.Q8_0
    rows = random_rows(fmt, _READ_WIDTH, _READ_WIDTH)
    wanted = min(max(_LEAST_READ_BYTES, 2 * (setup.cache_bytes or 0)), max_weights_bytes)
    num_matrices = max(1, wanted // len(rows))
    at_once = max(1, _LEAST_READ_BYTES // len(rows))
    engines: list[LoadableEngine] = []
    end = time.perf_counter() + _FILL_SECONDS
    for start in range(0, num_matrices, at_once):
        if engines and time.perf_counter() >= end:
            break
        count = min(at_once, num_matrices - start)
        engines.append(_chain(setup.make_engine, rows, fmt, _READ_WIDTH, count, 1))
        on_progress((start + count) / num_matrices)
    num_bytes = sum(engine.weights_bytes for engine in engines)
    return _Work(
        figure="read_bytes_per_second",
        engines=tuple(engines),
        num_tokens=1,
        width=_READ_WIDTH,
        amount=num_bytes,
        source=f"{fmt.name} matrix product, 1 token, {format_bytes(num_bytes)} of weights "
        f"({_against_cache(num_bytes, setup.cache_bytes)}), {setup.ending}",
    )


def _chain(
    make_engine: MakeEngine,
    rows: bytes,
    fmt: TensorFormat,
    width: int,
    num_matrices: int,
    num_tokens: int,
) -> LoadableEngine:
    """Return an engine that multiplies by a series of square matrices.

    All have the same values, ``rows``, in separate memory: the values do not matter.
    """
    registers = (HIDDEN, "other")
    names = [f"weight{number}" for number in range(num_matrices)]
    program = Program(
        shard=Shard(start_layer=0, end_layer=0, num_layers=0, has_embedding=False, has_head=False),
        registers=tuple(Register(name=name, width=width) for name in registers),
        ops=tuple(
            Linear(x=registers[number % 2], weight=name, out=registers[(number + 1) % 2])
            for number, name in enumerate(names)
        ),
        weights=tuple(WeightSpec(name=name, shape=(width, width)) for name in names),
        caches=(),
        ropes=(),
        hidden_size=width,
        vocab_size=1,
        context_tokens=num_tokens,
    )
    engine = make_engine(program, num_blocks=0, max_step_tokens=num_tokens)
    sink = engine.sink()
    for name in names:
        load_weight(sink, TensorInfo(name=name, shape=(width, width), format=fmt), rows)
    engine.warm_up()
    return engine


def _against_cache(num_bytes: int, cache_bytes: int | None) -> str:
    if cache_bytes is None:
        return "the size of the last-level cache is unknown"
    relation = "beyond" if num_bytes > cache_bytes else "not beyond"
    return f"{relation} the last-level cache of {format_bytes(cache_bytes)}"
