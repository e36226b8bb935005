"""``potluck bench``: how fast a model runs in this process.

Prefill is measured on prompts of random tokens, decode on what follows them; end-of-text tokens do
not end it. The first run warms up and is not counted. ``benchmarks/METHODOLOGY.md`` defines the
figures.
"""

from __future__ import annotations

import platform
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

import potluck
from potluck.cli.options import (
    AllowSoftwareOption,
    ContextOption,
    JsonOption,
    LocalBackendOption,
    MmapOption,
    ModelArgument,
    Quant,
    QuantOption,
    StagesOption,
    ThreadsOption,
    asked_backend,
    settings,
)
from potluck.cli.output import emit_json, opened_model
from potluck.cli.report import load_document
from potluck.errors import ParameterError
from potluck.local import GenerationResult, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run: tokens per second of all streams together."""

    prefill_tokens_per_second: float
    decode_tokens_per_second: float


def bench(
    model: ModelArgument,
    prefill_tokens: Annotated[int, typer.Option("--prefill", help="Prompt tokens.", min=1)] = 512,
    decode_tokens: Annotated[int, typer.Option("--decode", help="New tokens.", min=2)] = 128,
    streams: Annotated[
        int, typer.Option("--streams", help="Sequences at the same time.", min=1)
    ] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Counted runs.", min=1)] = 3,
    stages: StagesOption = 1,
    context: ContextOption = None,
    threads: ThreadsOption = None,
    backend: LocalBackendOption = None,
    allow_software: AllowSoftwareOption = False,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    json: JsonOption = False,
) -> None:
    """Measure prefill and decode of MODEL in tokens per second."""
    chosen = settings()
    with opened_model(
        model,
        stages=stages,
        context=context if context is not None else chosen.context,
        cache_tokens=streams * (prefill_tokens + decode_tokens + 16),
        threads=threads if threads is not None else chosen.threads,
        isa=chosen.isa,
        backend=asked_backend(backend),
        allow_software=allow_software or chosen.allow_software,
        quantization=quant.quantization,
        mmap=mmap,
        packed_cache_bytes=chosen.packed_cache_bytes,
    ) as opened:
        most = opened.context_tokens
        if prefill_tokens + decode_tokens > most:
            raise ParameterError(
                "prefill",
                f"{prefill_tokens} + {decode_tokens} tokens do not fit in a context of {most}",
                hint="give smaller --prefill and --decode, or a larger --context",
            )
        console = Console(stderr=True)
        runs = track(
            range(repeats + 1),
            description="measuring",
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        samples = [_measure(opened, prefill_tokens, decode_tokens, streams) for _ in runs][1:]
        document = _document(opened, prefill_tokens, decode_tokens, streams, samples)
    if json:
        emit_json(document)
    else:
        print(_table_line("prefill", [sample.prefill_tokens_per_second for sample in samples]))
        print(_table_line("decode", [sample.decode_tokens_per_second for sample in samples]))


def _measure(model: Model, prefill_tokens: int, decode_tokens: int, streams: int) -> Sample:
    draw = random.Random(0)  # the same prompts in every run
    vocab_size = model.description.config.vocab_size
    generations = [
        model.generate(
            [draw.randrange(vocab_size) for _ in range(prefill_tokens)],
            max_tokens=decode_tokens,
            ignore_eos=True,
            temperature=0.0,
        )
        for _ in range(streams)
    ]
    return summarize([generation.result() for generation in generations])


def summarize(results: Sequence[GenerationResult]) -> Sample:
    """Rates of streams that were started together.

    Prefill ends when every stream has its first token; decode counts the tokens after that moment
    and lasts to the last one.
    """
    prefill_seconds = max(result.pieces[0].seconds for result in results)
    end_seconds = max(result.pieces[-1].seconds for result in results)
    decoded = sum(piece.seconds > prefill_seconds for result in results for piece in result.pieces)
    prompt_tokens = sum(len(result.prompt_tokens) for result in results)
    return Sample(
        prefill_tokens_per_second=prompt_tokens / prefill_seconds,
        decode_tokens_per_second=decoded / (end_seconds - prefill_seconds),
    )


def _table_line(name: str, rates: Sequence[float]) -> str:
    return (
        f"{name:8} {statistics.median(rates):10.1f} tokens/s "
        f"({min(rates):.1f} to {max(rates):.1f} in {len(rates)} runs)"
    )


def _document(
    model: Model, prefill_tokens: int, decode_tokens: int, streams: int, samples: Sequence[Sample]
) -> dict[str, object]:
    return {
        "schema": "potluck.bench/1",
        "version": potluck.__version__,
        "model": model.description.files.name,
        "machine": platform.machine(),
        "unit_id": model.plan.unit.address.unit_id,
        "isa": model.plan.unit.address.variant,
        "num_threads": model.plan.size.num_threads,
        "num_stages": len(model.plan.stages),
        "weights_bytes": sum(stage.memory.weights_bytes for stage in model.plan.stages),
        "loads": [load_document(report) for report in model.load_reports],
        "prefill_tokens": prefill_tokens,
        "decode_tokens": decode_tokens,
        "streams": streams,
        "prefill_tokens_per_second": [sample.prefill_tokens_per_second for sample in samples],
        "decode_tokens_per_second": [sample.decode_tokens_per_second for sample in samples],
    }
