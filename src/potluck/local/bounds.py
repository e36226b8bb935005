"""Compare a measured model with its limits: memory in decode, and arithmetic in prefill."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import msgspec

from potluck.engines.loading.load import LoadedStage
from potluck.engines.native.engine import NativeEngine
from potluck.engines.native.products import Operands
from potluck.engines.native.roofline import Limits, Roofline
from potluck.engines.native.step_work import Work, work_of
from potluck.local.measuring import PhaseRun
from potluck.types.document import Document, PositiveAmount

OUTSIDE = "outside the core"
"""An entry among the ops: passing steps on, and the overhead of Python."""

PerRun = Annotated[
    tuple[PositiveAmount, ...],
    msgspec.Meta(min_length=1, description="One value per counted run."),
]

BoundSeconds = Mapping[str, float]
"""The minimum time of an op's bytes or products, by op; ops without a bound are omitted."""


class OpDocument(Document, frozen=True, kw_only=True):
    """An op in all runs of a phase."""

    op: str
    """A kind of op; for a matrix, its role in the layer."""
    share: Annotated[float, msgspec.Meta(ge=0, le=1)]
    """Fraction of the phase's time."""
    fraction_of_bound: float | None
    """The minimum time of the op divided by its time; null if it has no bound."""


class PhaseDocument(Document, frozen=True, kw_only=True):
    """The work of a phase, and its time compared with that at the machine's limits."""

    bytes_per_token: float
    """Weights, read once per step, and the cached keys and values of the context."""
    operations_per_token: float
    """Operations of products with weights; a multiply-add is two."""
    fraction_of_bound: PerRun | None
    """The minimum time of each run divided by its time; null if the peak of a product is
    unknown."""
    ops: tuple[OpDocument, ...]
    """The slowest op first."""


class Bounds:
    """Measures the limits of the machine, and counts the work of stages of the native engine.

    Holds the memory that is read to measure the rate. Must be created before the engines are
    closed.
    """

    def __init__(self, stages: Sequence[LoadedStage]) -> None:
        engines = [each.engine for each in stages if isinstance(each.engine, NativeEngine)]
        if len(engines) < len(stages):
            raise TypeError("only the native engine reports the work of its ops")
        self._stages = [
            (stage.program, engine.op_labels(), engine)
            for stage, engine in zip(stages, engines, strict=True)
        ]
        operands = {
            each
            for engine in engines
            for of_prompts in (True, False)
            for each in engine.operands(of_prompts=of_prompts).values()
        }
        if any(stage.program.states for stage in stages):
            operands.add(Operands.F32)
        self._roofline = Roofline(engines[0].pool, engines[0].isa, operands)
        self.instructions: Mapping[Operands, str] = self._roofline.instructions

    def sample(self) -> Limits:
        """Measure the current limits; see ``Roofline``."""
        return self._roofline.sample()

    def prefill(self, runs: Sequence[PhaseRun], limits: Sequence[Limits]) -> PhaseDocument:
        """Compare prefill with the arithmetic peak. ``limits`` were measured with each run."""
        return _figures(self._work(runs[0], of_prompts=True), runs, limits, _seconds_of_products)

    def decode(self, runs: Sequence[PhaseRun], limits: Sequence[Limits]) -> PhaseDocument:
        """Compare decode with the memory rate; see ``prefill``."""
        return _figures(self._work(runs[0], of_prompts=False), runs, limits, _seconds_of_reads)

    def _work(self, run: PhaseRun, *, of_prompts: bool) -> Work:
        """Return the work of one run, which is the same for all runs."""
        work = Work()
        for program, labels, engine in self._stages:
            operands = engine.operands(of_prompts=of_prompts)
            work.add(work_of(program, labels, engine.weights, run.steps, operands))
        return work


def _figures(
    work: Work,
    runs: Sequence[PhaseRun],
    limits: Sequence[Limits],
    bound_of: Callable[[Work, Limits], BoundSeconds | None],
) -> PhaseDocument:
    bounds = [bound_of(work, limit) for limit in limits]
    known = [bound for bound in bounds if bound is not None]
    fractions = None
    if len(known) == len(runs):
        pairs = zip(known, runs, strict=True)
        fractions = tuple(sum(bound.values()) / run.seconds for bound, run in pairs)
    num_tokens = runs[0].num_tokens
    return PhaseDocument(
        bytes_per_token=sum(work.read_bytes.values()) / num_tokens,
        operations_per_token=2 * sum(work.multiply_adds.values()) / num_tokens,
        fraction_of_bound=fractions,
        ops=_ops(runs, known if fractions else []),
    )


def _seconds_of_reads(work: Work, limits: Limits) -> BoundSeconds:
    rate = limits.read_bytes_per_second
    return {op: num_bytes / rate for op, num_bytes in work.read_bytes.items()}


def _seconds_of_products(work: Work, limits: Limits) -> BoundSeconds | None:
    """Return the times of products; None if the instruction set has no peak for some of them."""
    rates = limits.multiply_adds_per_second
    if any(each not in rates for _, each in work.multiply_adds):
        return None
    seconds: dict[str, float] = {}
    for (op, operands), count in work.multiply_adds.items():
        seconds[op] = seconds.get(op, 0.0) + count / rates[operands]
    return seconds


def _ops(runs: Sequence[PhaseRun], bounds: Sequence[BoundSeconds]) -> tuple[OpDocument, ...]:
    seconds: dict[str, float] = {}
    for run in runs:
        for op, of_op in (run.op_seconds or {}).items():
            seconds[op] = seconds.get(op, 0.0) + of_op
    total = sum(run.seconds for run in runs)
    # Stages share the threads and take turns, so the times of their ops do not overlap.
    seconds[OUTSIDE] = max(0.0, total - sum(seconds.values()))
    seconds = {op: of_op for op, of_op in seconds.items() if of_op > 0}
    op_total = sum(seconds.values())
    ops = [
        OpDocument(
            op=op,
            share=of_op / op_total,
            fraction_of_bound=sum(each[op] for each in bounds) / of_op
            if bounds and op in bounds[0]
            else None,
        )
        for op, of_op in seconds.items()
    ]
    return tuple(sorted(ops, key=lambda each: -each.share))
