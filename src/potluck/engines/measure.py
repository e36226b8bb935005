"""How fast an engine is on this machine: bytes read, operations in products, tokens.

Everything is timed around whole steps of an engine, with the threads it will have. Of several
rounds the best counts: whatever else runs on the machine can only make a round slower. Rates are
those of the time that threads may run: a quota on that (``UnitReport.usable_cores``) is not in
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from potluck.engines import rate_program
from potluck.engines.synthetic_weights import random_rows
from potluck.engines.timing import Stopwatch, best_seconds
from potluck.quantities import format_bytes
from potluck.types.engine import LoadableEngine, MakeEngine
from potluck.types.program import HIDDEN, Linear, Program, Register, Shard, WeightSpec
from potluck.types.step import SequenceId, SequenceSlice, Step, StepId
from potluck.types.tensor import TensorFormat, TensorInfo

_RATE_WIDTH = 1024
"""With two matrices of 1024 × 1024 a step of 128 tokens has 0.54 G operations: on a server's cores
of 2.6 GHz 1.7 ms with AVX-512 on two, and 0.4 s without vectors on one. With twice the matrices the
rate is the same to a percent."""

_READ_WIDTH = 4096
"""Rows and columns of the matrices that are read; 18 MB each in Q8_0."""
_LEAST_READ_BYTES = 128 << 20
"""Where the size of the last-level cache is not known: most have less than 64 MiB."""
_FILL_SECONDS = 0.6
"""For making weights to read: 500 to 700 MiB on those two cores, 200 where the host of a virtual
machine must find the memory first."""

_NUM_PASSES = 4
_SLOT_SECONDS = 0.04
"""Every figure has its turn four times, so that what disturbs one turn spoils none."""
_MEASURE_SECONDS = 0.7
"""After which no further turn begins, where a single step takes longer than a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """One figure: engines that run one after the other, and how much work one round of them is.

    ``amount`` is in operations or bytes.
    """

    figure: str
    engines: tuple[LoadableEngine, ...]
    num_tokens: int
    width: int
    amount: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is measured.

    ``make_engine`` makes engines of it, and those in ``makers`` for single figures. ``formats`` has
    the weights of the matrix products by the name of their figure, and ``num_tokens`` how many
    tokens go through at once. ``cache_bytes`` is the size of the last-level cache before its
    memory, None if nobody says. ``ending`` of every source says what it computes with:
    ``2 threads, avx2``. The ``stopwatch`` knows how many threads of this process that is.
    """

    make_engine: MakeEngine
    formats: Mapping[str, TensorFormat]
    num_tokens: int
    cache_bytes: int | None
    ending: str
    makers: Mapping[str, MakeEngine] = field(default_factory=dict)
    stopwatch: Stopwatch = field(default_factory=Stopwatch)


def measure(
    subject: Subject, max_weights_bytes: int, on_progress: Callable[[float], None]
) -> dict[str, dict[str, dict[str, object]]]:
    """Value and source of ``figures`` and ``rates``, by the names of ``Figures`` and ``Rates``.

    No more than ``max_weights_bytes`` of weights are made at a time, but at least one matrix or
    layer; those of the products take 15 MB. Under 2.5 s in all, besides what the engine compiles,
    unless a step takes more than half a second.
    """
    figures = _figures(subject, max_weights_bytes, lambda done: on_progress(0.6 * done))
    rates = rate_program.measure_rates(
        subject.make_engine,
        max_weights_bytes,
        subject.ending,
        lambda done: on_progress(0.6 + 0.4 * done),
        subject.stopwatch,
    )
    return {"figures": figures, "rates": rates}


def _figures(
    subject: Subject, max_weights_bytes: int, on_progress: Callable[[float], None]
) -> dict[str, dict[str, object]]:
    works = [_rate(subject, figure, fmt) for figure, fmt in subject.formats.items()]
    works.append(_read(subject, max_weights_bytes, lambda done: on_progress(0.1 + 0.4 * done)))
    best = [math.inf] * len(works)
    end = time.perf_counter() + _MEASURE_SECONDS
    for number in range(_NUM_PASSES * len(works)):
        if number >= len(works) and time.perf_counter() >= end:
            break
        index = number % len(works)
        work = works[index]
        seconds = best_seconds(
            work.engines, _step(work.num_tokens), work.width, _SLOT_SECONDS, subject.stopwatch
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


def _rate(subject: Subject, figure: str, fmt: TensorFormat) -> _Work:
    """Matrix products with many tokens: the weights come from caches. A multiply-add is two."""
    num_matrices, num_tokens = 2, subject.num_tokens
    make_engine = subject.makers.get(figure, subject.make_engine)
    in_fast = ", fast" if figure in subject.makers else ""
    rows = random_rows(fmt, _RATE_WIDTH, _RATE_WIDTH)
    return _Work(
        figure=figure,
        engines=(_chain(make_engine, rows, fmt, _RATE_WIDTH, num_matrices, num_tokens),),
        num_tokens=num_tokens,
        width=_RATE_WIDTH,
        amount=2 * num_tokens * _RATE_WIDTH * _RATE_WIDTH * num_matrices,
        source=f"{fmt.name} matrix product{in_fast}, {num_tokens} tokens, {subject.ending}",
    )


def _read(subject: Subject, max_weights_bytes: int, on_progress: Callable[[float], None]) -> _Work:
    """Products with one token, as decoding has them: every weight is read once per round."""
    fmt = TensorFormat.Q8_0
    rows = random_rows(fmt, _READ_WIDTH, _READ_WIDTH)
    wanted = min(max(_LEAST_READ_BYTES, 2 * (subject.cache_bytes or 0)), max_weights_bytes)
    num_matrices = max(1, wanted // len(rows))
    at_once = max(1, _LEAST_READ_BYTES // len(rows))
    engines: list[LoadableEngine] = []
    end = time.perf_counter() + _FILL_SECONDS
    for start in range(0, num_matrices, at_once):
        if engines and time.perf_counter() >= end:
            break
        count = min(at_once, num_matrices - start)
        engines.append(_chain(subject.make_engine, rows, fmt, _READ_WIDTH, count, 1))
        on_progress((start + count) / num_matrices)
    num_bytes = sum(engine.weights_bytes for engine in engines)
    return _Work(
        figure="read_bytes_per_second",
        engines=tuple(engines),
        num_tokens=1,
        width=_READ_WIDTH,
        amount=num_bytes,
        source=f"{fmt.name} matrix product, 1 token, {format_bytes(num_bytes)} of weights "
        f"({_against_cache(num_bytes, subject.cache_bytes)}), {subject.ending}",
    )


def _step(num_tokens: int) -> Step:
    part = SequenceSlice(
        sequence_id=SequenceId(0),
        tokens=(0,) * num_tokens,
        start_position=0,
        block_table=(),
        sample=False,
    )
    return Step(step_id=StepId(0), slices=(part,))


def _chain(
    make_engine: MakeEngine,
    rows: bytes,
    fmt: TensorFormat,
    width: int,
    num_matrices: int,
    num_tokens: int,
) -> LoadableEngine:
    """An engine that multiplies by one square matrix after the other.

    All have the same values, ``rows``, in places of their own: the values do not matter.
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
        sink.begin(TensorInfo(name=name, shape=(width, width), format=fmt))
        sink.write_rows(name, 0, width, memoryview(rows))
        sink.finish(name)
    engine.warm_up()
    return engine


def _against_cache(num_bytes: int, cache_bytes: int | None) -> str:
    if cache_bytes is None:
        return "the size of the last-level cache is not known"
    relation = "beyond" if num_bytes > cache_bytes else "not beyond"
    return f"{relation} the last-level cache of {format_bytes(cache_bytes)}"
