"""Output of commands: data on stdout, everything else on stderr."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from potluck.types.choices import OFF

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from potluck.cli.settings import NodeSettings
    from potluck.local import LoadProgress, Model
    from potluck.types.choices import ArithmeticChoice, Quantization
    from potluck.types.document import Document


_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def note(text: str) -> None:
    """Print a line for the user on stderr, so that it does not end up on stdout."""
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def log_events(*, is_debugging: bool) -> None:
    """Have Potluck's own log tell what happens, with the time: for a command that goes on long."""
    if not is_debugging:
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", force=True)
        logging.getLogger("potluck").setLevel(logging.INFO)


def emit_json(document: Document | dict[str, object]) -> None:
    """Print a JSON document, escaped if the terminal's encoding is not UTF-8."""
    ascii_only = sys.stdout is None or sys.stdout.encoding.lower() != "utf-8"
    built = msgspec.to_builtins(document)
    print(json.dumps(built, ensure_ascii=ascii_only, indent=2, allow_nan=False))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of data on stdout, with control characters escaped: untrusted names, such as
    those in a wheel, could forge lines or reconfigure a terminal.
    """
    for line in lines:
        print(_CONTROLS.sub(lambda match: ascii(match[0])[1:-1], line))


def emit(document: Document | dict[str, object], lines: Iterable[str], *, as_json: bool) -> None:
    """Print ``document`` as JSON, or else ``lines``, which present it as text."""
    if as_json:
        emit_json(document)
    else:
        print_lines(lines)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on stderr that disappears at its end; only shown on a terminal.

    ``columns`` follow the description and the bar.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def opened_model(
    name: str,
    chosen: NodeSettings,
    *,
    stages: int,
    context: int | None,
    threads: int | None,
    backend: str | None,
    allow_software: bool,
    quantization: Quantization | None,
    mmap: bool,
    arithmetic: ArithmeticChoice | None,
    cache_tokens: int | None = None,
    states: int | None,
    default_states: int | None,
    draft: str = OFF,
) -> Iterator[Model]:
    """Open a model with a progress bar, say how it is quantized, and close it at the end.

    The settings ``chosen`` apply where the options ``threads``, ``backend``, ``allow_software`` and
    ``arithmetic`` are not given.
    """
    from potluck.cli.options import resolve_arithmetic, resolve_backend

    backend = resolve_backend(backend, chosen)
    arithmetic = resolve_arithmetic(arithmetic, chosen)

    from rich.progress import DownloadColumn, TransferSpeedColumn

    from potluck.local import Model
    from potluck.weights.load import remark_lines

    bar = progress_bar(DownloadColumn(binary_units=True), TransferSpeedColumn())
    task = bar.add_task(f"loading {name}", total=None, start=True)

    def advance(progress: LoadProgress) -> None:
        doing = "loading"
        if progress.is_fetching:
            doing = "fetching"
        elif progress.is_warming_up:
            doing = "warming up"
        bar.update(
            task,
            description=f"{doing} {name}",
            completed=progress.done_bytes,
            total=progress.total_bytes,
        )
        if progress.done_bytes > 0:
            bar.start()

    try:
        model = Model.open(
            name,
            stages=stages,
            context_tokens=context,
            cache_tokens=cache_tokens,
            num_states=states,
            default_states=default_states,
            num_threads=chosen.threads if threads is None else threads,
            isa=chosen.isa,
            backend=backend,
            allow_software=allow_software or chosen.allow_software,
            quantization=quantization,
            mmap=mmap,
            arithmetic=arithmetic,
            packed_cache_bytes=chosen.packed_cache_bytes,
            draft=draft,
            on_progress=advance,
        )
    finally:
        bar.stop()
    with model:
        if quantization is None:
            note(f"quant: {model.plan.size.quantization.value}")
        for line in remark_lines(each for stage in model.plan.stages for each in stage.remarks):
            note(f"quant: {line}")
        yield model
