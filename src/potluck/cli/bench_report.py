"""The output of ``potluck bench``: the JSON document, and tables made from it."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

import potluck
from potluck.cli.report import LoadDocument, load_documents
from potluck.cli.tables import table
from potluck.engines.arithmetic_choice import is_faster_for
from potluck.engines.backends import abilities_of
from potluck.engines.native.products import Operands
from potluck.engines.native.roofline import Limits
from potluck.host.cores import default_num_threads, last_level_cache_bytes
from potluck.local import Model
from potluck.local.bounds import Bounds, OpDocument, PerRun, PhaseDocument
from potluck.local.measuring import DRAFTS_PER_STEP, SAMPLED, Run, Workload
from potluck.types.arithmetic import Arithmetic, arithmetics_with
from potluck.types.document import Count, Document, PositiveCount, document_of
from potluck.types.quantities import format_bytes, format_count, format_rate

_LEAST_SHARE = 0.001
"""Ops that take less of both phases are left out of the table: they are in the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The counted runs. ``limits`` were measured around each of them; none without ``bounds``."""

    runs: tuple[Run, ...]
    limits: tuple[Limits, ...]
    bounds: Bounds | None


class SampledDocument(Document, frozen=True, kw_only=True):
    """How the sampled decode chooses tokens."""

    temperature: float
    top_p: float


class DraftedDocument(Document, frozen=True, kw_only=True):
    """The greedy decode with drafts that are all right, which shows their maximum gain."""

    drafts_per_step: PositiveCount
    """Maximum number of drafts of each sequence."""
    tokens_per_second: PerRun
    """Rate of all sequences together, of each counted run."""
    num_drafted: Count
    """Drafts in all counted runs."""
    num_accepted: Count
    """Drafts that were right: all of them, unless results depend on the batch."""
    gain: PerRun
    """The rate divided by that of the plain greedy decode of the same run."""


class PeakDocument(Document, frozen=True, kw_only=True):
    """The peak of an arithmetic with which the model's matrices are multiplied."""

    operands: Operands
    instruction: str
    operations_per_second: PerRun
    """A multiply-add is two operations."""


class LimitsDocument(Document, frozen=True, kw_only=True):
    """The limits of the machine, measured around each run with as many threads."""

    last_level_cache_bytes: Count | None
    """Data of at most this size is read faster than from memory; null if the system does not tell
    the size."""
    read_bytes_per_second: PerRun
    peaks: tuple[PeakDocument, ...]
    """Without the arithmetics for which the instruction set has no instruction of its own."""


class BenchDocument(Document, frozen=True, kw_only=True):
    """The output of ``potluck bench --json``."""

    schema: Literal["potluck.bench/1"] = "potluck.bench/1"
    version: str
    model: str
    machine: str
    """Output of ``uname -m``."""
    unit_id: str
    """The device and the backend that computed."""
    isa: str
    """Instruction set of the kernels, or the variant of another backend."""
    num_threads: PositiveCount
    num_stages: PositiveCount
    weights_bytes: Count
    loads: Annotated[tuple[LoadDocument, ...], msgspec.Meta(min_length=1)]
    """Results of loading each stage."""
    prompt_tokens: PositiveCount
    """Prompt tokens of each sequence."""
    decode_tokens: PositiveCount
    """New tokens of each sequence."""
    depth_tokens: Count
    """Context of each sequence before prefill and before decode, which is not counted."""
    num_sequences: PositiveCount
    arithmetic: Arithmetic | None
    """The arithmetic of the runs: exact if the unit has no faster one for the weights; null for a
    backend with an arithmetic of its own."""
    fast_arithmetic: Arithmetic | None
    """The arithmetic of ``--arithmetic fast``, if it is faster than that of the runs."""
    prefill_tokens_per_second: PerRun
    """Rate of all sequences together, of each counted run."""
    decode_tokens_per_second: PerRun
    """Rate of all sequences together in the greedy decode, of each counted run."""
    sampling: SampledDocument
    sampled_tokens_per_second: PerRun
    """Rate of the same decode, in turns with it, with every token sampled."""
    drafted: DraftedDocument | None
    """Null with ``--draft off``."""
    limits: LimitsDocument | None
    """Null for a backend other than native."""
    prefill: PhaseDocument | None
    """Prefill, bound by the peaks; null for a backend other than native."""
    decode: PhaseDocument | None
    """Decode, bound by the memory rate; null for a backend other than native."""


def bench_document(model: Model, workload: Workload, result: BenchResult) -> BenchDocument:
    """Return the document of ``potluck bench --json``."""
    prefills = [run.prefill for run in result.runs]
    decodes = [run.decode for run in result.runs]
    bounds = result.bounds
    unit = model.plan.unit
    has_arithmetics = abilities_of(unit.backend).has_arithmetics
    return document_of(
        BenchDocument,
        workload,
        version=potluck.__version__,
        model=model.description.files.name,
        machine=platform.machine(),
        unit_id=unit.unit_id,
        isa=unit.variant,
        num_threads=min(model.plan.size.num_threads, default_num_threads()),
        num_stages=len(model.plan.stages),
        weights_bytes=sum(stage.memory.weights_bytes for stage in model.plan.stages),
        loads=load_documents(model),
        arithmetic=model.plan.size.arithmetic if has_arithmetics else None,
        fast_arithmetic=_fast_arithmetic(model),
        prefill_tokens_per_second=tuple(run.tokens_per_second for run in prefills),
        decode_tokens_per_second=tuple(run.tokens_per_second for run in decodes),
        sampling=document_of(SampledDocument, SAMPLED),
        sampled_tokens_per_second=tuple(run.sampled.tokens_per_second for run in result.runs),
        drafted=_drafted(result.runs),
        limits=None if bounds is None else _limits(bounds, result.limits),
        prefill=None if bounds is None else bounds.prefill(prefills, result.limits),
        decode=None if bounds is None else bounds.decode(decodes, result.limits),
    )


def _drafted(runs: Sequence[Run]) -> DraftedDocument | None:
    drafted = [(run.decode, run.drafted) for run in runs if run.drafted is not None]
    if not drafted:
        return None
    return DraftedDocument(
        drafts_per_step=DRAFTS_PER_STEP,
        tokens_per_second=tuple(run.tokens_per_second for _, run in drafted),
        num_drafted=sum(run.num_drafted for _, run in drafted),
        num_accepted=sum(run.num_accepted for _, run in drafted),
        gain=tuple(run.tokens_per_second / plain.tokens_per_second for plain, run in drafted),
    )


def _fast_arithmetic(model: Model) -> Arithmetic | None:
    """Return the arithmetic of ``--arithmetic fast``; None if it is in use or gains nothing."""
    unit, chosen = model.plan.unit, model.plan.size.arithmetic
    has_arithmetics = abilities_of(unit.backend).has_arithmetics
    if not has_arithmetics or chosen is not Arithmetic.EXACT:
        return None
    *_, fast = arithmetics_with((unit.variant,))
    return fast if is_faster_for(fast, model.plan.product_formats) else None


def _limits(bounds: Bounds, limits: Sequence[Limits]) -> LimitsDocument:
    return LimitsDocument(
        last_level_cache_bytes=last_level_cache_bytes(),
        read_bytes_per_second=tuple(limit.read_bytes_per_second for limit in limits),
        peaks=tuple(
            PeakDocument(
                operands=operands,
                instruction=instruction,
                operations_per_second=tuple(
                    2 * limit.multiply_adds_per_second[operands] for limit in limits
                ),
            )
            for operands, instruction in bounds.instructions.items()
        ),
    )


def bench_lines(document: BenchDocument) -> Iterator[str]:
    """Yield the document as text."""
    yield from table([*_rate_rows(document)])
    yield from _arithmetic_lines(document)
    yield ""
    limits, prefill, decode = document.limits, document.prefill, document.decode
    if limits is None or prefill is None or decode is None:
        yield f"no per-op times and no limits: {document.unit_id} does not use the native backend"
        return
    on = f"on {format_count(document.num_threads, 'thread')}"
    bandwidth = format_rate(statistics.median(limits.read_bytes_per_second), "B/s")
    per_token = format_bytes(round(decode.bytes_per_token))
    yield f"bandwidth: {bandwidth} {on}; decode reads {per_token} per token"
    cache_bytes = limits.last_level_cache_bytes
    if cache_bytes is not None and decode.bytes_per_token < cache_bytes:
        yield f"that fits in the caches, which are faster: {format_bytes(cache_bytes)}"
    for peak in limits.peaks:
        rate = format_rate(statistics.median(peak.operations_per_second), "op/s")
        yield f"peak: {rate} {on} in {peak.operands.value} ({peak.instruction})"
    if prefill.fraction_of_bound is None:
        yield f"peak: not known, {document.isa} has no multiply-add of its own"
    yield ""
    yield from table([*_op_rows(prefill, decode)])


def _rate_rows(document: BenchDocument) -> Iterator[Sequence[str]]:
    yield ("", "TOKENS/S", "LEAST", "MOST", "REACHED")
    for name, rates, phase, bound in (
        ("prefill", document.prefill_tokens_per_second, document.prefill, "peak"),
        ("decode", document.decode_tokens_per_second, document.decode, "bandwidth"),
    ):
        fractions = phase and phase.fraction_of_bound
        reached = f"{_percent(statistics.median(fractions))} of {bound}" if fractions else ""
        yield (name, *_spread(rates), reached)
    yield (
        "decode, sampled",
        *_spread(document.sampled_tokens_per_second),
        f"temperature {document.sampling.temperature}, top-p {document.sampling.top_p}",
    )
    if drafted := document.drafted:
        yield (
            "decode, drafted",
            *_spread(drafted.tokens_per_second),
            f"{statistics.median(drafted.gain):.2f} times; drafted {drafted.num_drafted},"
            f" right {drafted.num_accepted}",
        )


def _spread(rates: Sequence[float]) -> Iterator[str]:
    for each in (statistics.median, min, max):
        yield f"{each(rates):.1f}"


def _arithmetic_lines(document: BenchDocument) -> Iterator[str]:
    """Yield lines about the arithmetic, unless the backend has its own."""
    arithmetic, fast = document.arithmetic, document.fast_arithmetic
    if arithmetic is None:
        return
    where = "every CPU" if arithmetic is Arithmetic.EXACT else "CPUs that have it"
    yield f"arithmetic: {arithmetic.value}, bit-identical on {where}"
    if fast is not None:
        yield f"faster for these weights: {fast.value} (--arithmetic fast)"


def _op_rows(prefill: PhaseDocument, decode: PhaseDocument) -> Iterator[Sequence[str]]:
    yield ("OP", "OF PREFILL", "OF PEAK", "OF DECODE", "OF BANDWIDTH")
    nothing = OpDocument(op="", share=0.0, fraction_of_bound=None)
    in_prefill = {each.op: each for each in prefill.ops}
    in_decode = {each.op: each for each in decode.ops}
    rows = [
        (op, in_prefill.get(op, nothing), in_decode.get(op, nothing))
        for op in {**in_decode, **in_prefill}
    ]
    rows.sort(key=lambda row: -(row[1].share + row[2].share))
    for op, first, second in rows:
        if max(first.share, second.share) < _LEAST_SHARE:
            continue
        cells = (first.share, first.fraction_of_bound, second.share, second.fraction_of_bound)
        yield (op, *("" if cell is None else _percent(cell) for cell in cells))


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"
