"""The output of ``potluck bench``: the JSON document, and tables made from it."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import potluck
from potluck.cli.report import load_documents
from potluck.cli.tables import table
from potluck.engines.arithmetic_choice import is_faster_for
from potluck.engines.backends import abilities_of
from potluck.engines.native.roofline import Limits
from potluck.local import Model
from potluck.local.bounds import Bounds, PhaseFigures
from potluck.local.measuring import DRAFTS_PER_STEP, SAMPLED, Run, Workload
from potluck.probe.machine.cores import default_num_threads
from potluck.probe.machine.cpu_cache import last_level_cache_bytes
from potluck.quantities import format_bytes, format_count, format_rate
from potluck.types.arithmetic import Arithmetic, arithmetics_with

_LEAST_SHARE = 0.001
"""Ops that take less of both phases are left out of the table: they are in the document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """The counted runs. ``limits`` were measured around each of them; none without ``bounds``."""

    runs: tuple[Run, ...]
    limits: tuple[Limits, ...]
    bounds: Bounds | None


def bench_document(model: Model, workload: Workload, result: BenchResult) -> dict[str, Any]:
    """The document of ``potluck bench --json`` (schema ``potluck.bench/1``)."""
    prefills = [run.prefill for run in result.runs]
    decodes = [run.decode for run in result.runs]
    bounds = result.bounds
    unit = model.plan.unit
    has_arithmetics = abilities_of(unit.backend).has_arithmetics
    return {
        "schema": "potluck.bench/1",
        "version": potluck.__version__,
        "model": model.description.files.name,
        "machine": platform.machine(),
        "unit_id": unit.unit_id,
        "isa": unit.variant,
        "num_threads": min(model.plan.size.num_threads, default_num_threads()),
        "num_stages": len(model.plan.stages),
        "weights_bytes": sum(stage.memory.weights_bytes for stage in model.plan.stages),
        "loads": load_documents(model),
        "prompt_tokens": workload.prompt_tokens,
        "decode_tokens": workload.decode_tokens,
        "depth_tokens": workload.depth_tokens,
        "num_sequences": workload.num_sequences,
        "arithmetic": model.plan.size.arithmetic.value if has_arithmetics else None,
        "fast_arithmetic": _fast_arithmetic(model),
        "prefill_tokens_per_second": [run.tokens_per_second for run in prefills],
        "decode_tokens_per_second": [run.tokens_per_second for run in decodes],
        "sampling": {"temperature": SAMPLED.temperature, "top_p": SAMPLED.top_p},
        "sampled_tokens_per_second": [run.sampled.tokens_per_second for run in result.runs],
        "drafted": _drafted(result.runs),
        "limits": None if bounds is None else _limits(bounds, result.limits),
        "prefill": None if bounds is None else _phase(bounds.prefill(prefills, result.limits)),
        "decode": None if bounds is None else _phase(bounds.decode(decodes, result.limits)),
    }


def _drafted(runs: Sequence[Run]) -> dict[str, object] | None:
    """Decode with drafts that are all right; its gain is that of each run over the plain decode."""
    drafted = [(run.decode, run.drafted) for run in runs if run.drafted is not None]
    if not drafted:
        return None
    return {
        "drafts_per_step": DRAFTS_PER_STEP,
        "tokens_per_second": [run.tokens_per_second for _, run in drafted],
        "num_drafted": sum(run.num_drafted for _, run in drafted),
        "num_accepted": sum(run.num_accepted for _, run in drafted),
        "gain": [run.tokens_per_second / plain.tokens_per_second for plain, run in drafted],
    }


def _fast_arithmetic(model: Model) -> str | None:
    """What ``--arithmetic fast`` would compute in; None where it is that, or would gain nothing."""
    unit, chosen = model.plan.unit, model.plan.size.arithmetic
    has_arithmetics = abilities_of(unit.backend).has_arithmetics
    if not has_arithmetics or chosen is not Arithmetic.EXACT:
        return None
    *_, fast = arithmetics_with((unit.variant,))
    return fast.value if is_faster_for(fast, model.plan.product_formats) else None


def _limits(bounds: Bounds, limits: Sequence[Limits]) -> dict[str, object]:
    return {
        "last_level_cache_bytes": last_level_cache_bytes(),
        "read_bytes_per_second": [limit.read_bytes_per_second for limit in limits],
        "peaks": [
            {
                "operands": operands.value,
                "instruction": instruction,
                "operations_per_second": [
                    2 * limit.multiply_adds_per_second[operands] for limit in limits
                ],
            }
            for operands, instruction in bounds.instructions.items()
        ],
    }


def _phase(figures: PhaseFigures) -> dict[str, object]:
    total = sum(each.seconds for each in figures.ops)
    return {
        "bytes_per_token": figures.bytes_per_token,
        "operations_per_token": 2 * figures.multiply_adds_per_token,
        "fraction_of_bound": None if figures.fractions is None else list(figures.fractions),
        "ops": [
            {
                "op": each.op,
                "share": each.seconds / total,
                "fraction_of_bound": None
                if each.bound_seconds is None
                else each.bound_seconds / each.seconds,
            }
            for each in figures.ops
        ],
    }


def bench_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """The same for people."""
    yield from table([*_rate_rows(document)])
    yield from _arithmetic_lines(document)
    if document["limits"] is None:
        yield ""
        yield (
            f"no per-op times and no limits: {document['unit_id']} does not use the native backend"
        )
        return
    yield ""
    yield from _limit_lines(document)
    yield ""
    yield from table([*_op_rows(document["prefill"], document["decode"])])


def _rate_rows(document: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield ("", "TOKENS/S", "LEAST", "MOST", "REACHED")
    for phase, bound in (("prefill", "peak"), ("decode", "bandwidth")):
        rates = document[f"{phase}_tokens_per_second"]
        fractions = document[phase] and document[phase]["fraction_of_bound"]
        reached = f"{_percent(statistics.median(fractions))} of {bound}" if fractions else ""
        yield (
            phase,
            f"{statistics.median(rates):.1f}",
            f"{min(rates):.1f}",
            f"{max(rates):.1f}",
            reached,
        )
    rates = document["sampled_tokens_per_second"]
    yield (
        "decode, sampled",
        *(f"{each(rates):.1f}" for each in (statistics.median, min, max)),
        f"temperature {document['sampling']['temperature']}, top-p {document['sampling']['top_p']}",
    )
    if drafted := document["drafted"]:
        rates = drafted["tokens_per_second"]
        yield (
            "decode, drafted",
            *(f"{each(rates):.1f}" for each in (statistics.median, min, max)),
            f"{statistics.median(drafted['gain']):.2f} times; drafted {drafted['num_drafted']},"
            f" right {drafted['num_accepted']}",
        )


def _arithmetic_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Nothing of a backend that has an arithmetic of its own."""
    arithmetic, fast = document["arithmetic"], document["fast_arithmetic"]
    if arithmetic is None:
        return
    is_exact = arithmetic == Arithmetic.EXACT.value
    where = "every CPU" if is_exact else "CPUs that have it"
    yield f"arithmetic: {arithmetic}, bit-identical on {where}"
    if fast is not None:
        yield f"faster for these weights: {fast} (--arithmetic fast)"


def _limit_lines(document: Mapping[str, Any]) -> Iterator[str]:
    limits, threads = document["limits"], document["num_threads"]
    on = f"on {format_count(threads, 'thread')}"
    bandwidth = format_rate(statistics.median(limits["read_bytes_per_second"]), "B/s")
    per_token = format_bytes(round(document["decode"]["bytes_per_token"]))
    yield f"bandwidth: {bandwidth} {on}; decode reads {per_token} per token"
    cache_bytes = limits["last_level_cache_bytes"]
    if cache_bytes is not None and document["decode"]["bytes_per_token"] < cache_bytes:
        yield f"that fits in the caches, which are faster: {format_bytes(cache_bytes)}"
    for peak in limits["peaks"]:
        rate = format_rate(statistics.median(peak["operations_per_second"]), "op/s")
        yield f"peak: {rate} {on} in {peak['operands']} ({peak['instruction']})"
    if document["prefill"]["fraction_of_bound"] is None:
        yield f"peak: not known, {document['isa']} has no multiply-add of its own"


def _op_rows(prefill: Mapping[str, Any], decode: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    yield ("OP", "OF PREFILL", "OF PEAK", "OF DECODE", "OF BANDWIDTH")
    nothing = {"share": 0.0, "fraction_of_bound": None}
    in_prefill = {each["op"]: each for each in prefill["ops"]}
    in_decode = {each["op"]: each for each in decode["ops"]}
    rows = [
        (op, in_prefill.get(op, nothing), in_decode.get(op, nothing))
        for op in {**in_decode, **in_prefill}
    ]
    rows.sort(key=lambda row: -(row[1]["share"] + row[2]["share"]))
    for op, first, second in rows:
        if max(first["share"], second["share"]) < _LEAST_SHARE:
            continue
        cells = [each[name] for each in (first, second) for name in ("share", "fraction_of_bound")]
        yield (op, *("" if cell is None else _percent(cell) for cell in cells))


def _percent(fraction: float) -> str:
    percent = 100 * fraction
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"
