"""``potluck bench``: how fast a model runs in this process, and how close it comes to the machine's
limits.

Prefill and decode are measured at the same depth of context. The first run warms up and is not
counted. ``benchmarks/METHODOLOGY.md`` defines the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from potluck.cli.options import (
    AllowSoftwareOption,
    ArithmeticOption,
    ContextOption,
    JsonOption,
    LocalBackendOption,
    MmapOption,
    ModelArgument,
    QuantOption,
    StagesOption,
    StatesOption,
    ThreadsOption,
    resolve_draft,
    settings,
)
from potluck.cli.output import emit, opened_model, progress_bar
from potluck.cli.spec_options import Quant
from potluck.errors import ParameterError
from potluck.types.choices import NGRAM, OFF

if TYPE_CHECKING:
    from potluck.cli.bench_report import BenchResult
    from potluck.engines.native.roofline import Limits
    from potluck.local import Model
    from potluck.local.measuring import Run, Workload

BenchDraftOption = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="ngram|off",
        help="ngram: also measure decode with drafts that are all correct; off: only without "
        "drafts. Draft models are not measured. Default: ngram.",
        show_default=False,
    ),
]


def bench(
    model: ModelArgument,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt", help="Number of prompt tokens per sequence.", min=1)
    ] = 512,
    decode_tokens: Annotated[
        int, typer.Option("--decode", help="Number of new tokens per sequence.", min=1)
    ] = 128,
    depth_tokens: Annotated[
        int,
        typer.Option(
            "--depth", help="Number of context tokens that precede both phases; not counted.", min=0
        ),
    ] = 0,
    sequences: Annotated[
        int, typer.Option("--sequences", help="Number of concurrent sequences.", min=1)
    ] = 1,
    repeats: Annotated[int, typer.Option("--repeats", help="Number of measured runs.", min=1)] = 3,
    stages: StagesOption = 1,
    context: ContextOption = None,
    states: StatesOption = None,
    threads: ThreadsOption = None,
    backend: LocalBackendOption = None,
    allow_software: AllowSoftwareOption = False,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    draft: BenchDraftOption = None,
    json: JsonOption = False,
) -> None:
    """Measure prefill and decode of MODEL in tokens per second, and compare them with the limits of
    memory and arithmetic on this machine, also for each op.

    Unless --draft is off, decode is also measured with drafts that are all correct, which shows
    their maximum gain.
    """
    from potluck.cli.bench_report import bench_document, bench_lines
    from potluck.local.measuring import Workload

    _check_draft(draft)
    chosen = settings()
    drafts = resolve_draft(draft, chosen) != OFF
    workload = Workload(
        prompt_tokens=prompt_tokens,
        decode_tokens=decode_tokens,
        depth_tokens=depth_tokens,
        num_sequences=sequences,
    )
    requested_context = context if context is not None else chosen.context
    with (
        _context_errors(workload, is_context_requested=requested_context is not None),
        opened_model(
            model,
            chosen,
            stages=stages,
            context=max(2, workload.sequence_tokens)
            if requested_context is None
            else requested_context,
            cache_tokens=workload.cache_tokens,
            states=states,
            default_states=workload.num_states,
            threads=threads,
            backend=backend,
            allow_software=allow_software,
            quantization=quant.quantization,
            mmap=mmap,
            arithmetic=arithmetic,
        ) as opened,
    ):
        if workload.sequence_tokens > opened.context_tokens:
            raise _does_not_fit(
                workload, f"a context of {opened.context_tokens}", hint="give a larger --context or"
            )
        _check_states(opened, workload)
        result = _measure(opened, workload, repeats, drafts=drafts)
        document = bench_document(opened, workload, result)
    emit(document, bench_lines(document), as_json=json)


def _check_draft(option: str | None) -> None:
    """Raise ``ParameterError`` if the option names a model; the setting may, for other commands."""
    if option not in (None, NGRAM, OFF):
        raise ParameterError(
            "draft",
            f"--draft {option}: bench does not measure draft models",
            hint="give ngram or off; to measure a draft model, compare potluck run with "
            "--draft MODEL and --draft off",
        )


def _measure(model: Model, workload: Workload, repeats: int, *, drafts: bool) -> BenchResult:
    from potluck.cli.bench_report import BenchResult
    from potluck.engines.native.engine import NativeEngine
    from potluck.local.bounds import Bounds
    from potluck.local.measuring import Measurement

    is_native = all(isinstance(stage.engine, NativeEngine) for stage in model.stages)
    runs: list[Run] = []
    limits: list[Limits] = []
    with (
        progress_bar() as bar,
        closing(Measurement(model, workload)) as measurement,
    ):
        task = bar.add_task("filling the context", total=1.0)
        measurement.fill(lambda done: bar.update(task, completed=done))
        bar.update(task, description="measuring", completed=0, total=repeats + 1)
        bounds = Bounds(model.stages) if is_native else None
        before = None
        for number in range(repeats + 1):
            run = measurement.run(drafts=drafts)
            # In turns, so that what disturbs the machine for a while disturbs both.
            after = bounds.sample() if bounds else None
            bar.advance(task)
            # In the first run memory is touched and threads are woken for the first time.
            if number > 0:
                runs.append(run)
            if before is not None and after is not None:
                limits.append(before.better(after))
            before = after
    return BenchResult(runs=tuple(runs), limits=tuple(limits), bounds=bounds)


@contextmanager
def _context_errors(workload: Workload, *, is_context_requested: bool) -> Iterator[None]:
    """Report a context that only the workload requires in terms of the workload."""
    try:
        yield
    except ParameterError as error:
        if is_context_requested or error.name != "context":
            raise
        raise _does_not_fit(workload, "any context here", hint=f"{error.hint}: give") from error


def _check_states(model: Model, workload: Workload) -> None:
    num_states = model.plan.size.num_states
    if 0 < num_states < workload.num_states:
        raise ParameterError(
            "states",
            f"{num_states} state slots are too few: {workload.num_states} are needed for "
            f"{workload.num_sequences} sequences after {workload.depth_tokens} tokens of "
            "context",
            hint=f"set --states {workload.num_states}, or omit it",
        )


def _does_not_fit(workload: Workload, room: str, *, hint: str) -> ParameterError:
    longest = max(workload.prompt_tokens, workload.decode_tokens)
    return ParameterError(
        "depth",
        f"{workload.depth_tokens} + {longest} tokens do not fit in {room}",
        hint=f"{hint} a smaller --depth, --prompt or --decode",
    )
