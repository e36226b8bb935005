"""``potluck check``: whether this machine can run a model, and its memory requirement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from potluck.cli.addresses import parse_size
from potluck.cli.options import (
    ContextOption,
    JsonOption,
    MemoryLimitOption,
    ModelArgument,
    QuantOption,
    StatesOption,
    settings,
)
from potluck.cli.output import emit
from potluck.cli.spec_options import Quant
from potluck.cli.tables import states_text, table
from potluck.types.memory import MemoryLimit
from potluck.types.quantities import format_bytes, format_few

if TYPE_CHECKING:
    from potluck.local.check_document import CheckDocument, Finding

_NUM_NAMES = 8


def check(
    model: ModelArgument,
    context: ContextOption = None,
    states: StatesOption = None,
    quant: QuantOption = Quant.NONE,
    memory_limit: MemoryLimitOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether this machine can run MODEL, and show its memory requirement and any problems.

    Only headers are read; for models on the hub, only headers are downloaded. Exit code 0: the
    model runs; 1: it does not run, or not in the available memory.
    """
    from potluck.local.check import check_model

    checked = check_model(
        model,
        context_tokens=context,
        num_states=states,
        default_states=settings().states,
        quantization=quant.quantization,
        limit=None if memory_limit is None else _limit(memory_limit),
    )
    emit(checked, check_lines(checked), as_json=json)
    if not checked.runs:
        raise typer.Exit(1)


def _limit(option: str) -> MemoryLimit:
    return MemoryLimit(bytes=parse_size(option), reason="--memory-limit")


def check_lines(checked: CheckDocument) -> Iterator[str]:
    """Return what was found, for a person: facts first, then what is said about them."""
    yield from table(list(_rows(checked)))
    for finding in checked.findings:
        yield from _finding_lines(finding)
    yield "this machine can run the model" if checked.runs else "this machine cannot run the model"


def _rows(checked: CheckDocument) -> Iterator[tuple[str, str]]:
    """Yield titles and facts, as far as they are known."""
    config = checked.configuration
    if config is not None:
        parameters = f", {_count(config.num_parameters)} parameters" * bool(config.num_parameters)
        yield (
            "model",
            f"{config.family}, {config.num_layers} layers{parameters}, "
            f"up to {config.max_context_tokens} tokens of context",
        )
        if checked.stored_bytes:
            sizes = checked.stored_bytes.items()
            parts = ", ".join(f"{label} {format_bytes(size)}" for label, size in sizes)
            encoding = f"; stored as {config.encoding}" if config.encoding else ""
            yield "weights", f"{parts}{encoding}"
    if checked.tokenizer_tokens is not None:
        yield "tokenizer", f"{checked.tokenizer_tokens} tokens"
    if checked.has_chat_template:
        yield "chat", "template works"
    if checked.backends:
        computing = [fit.name for fit in checked.backends if fit.computes]
        yield "backends", format_few(computing, _NUM_NAMES) if computing else "none"
        for problem, names in _problems(checked).items():
            yield "", f"not {format_few(names, _NUM_NAMES)}: {problem}"
    for index, context in enumerate(checked.memory):
        title = "memory" if index == 0 else ""
        room = "" if context.fits else ", which is too much"
        total = format_bytes(context.total_bytes)
        yield title, f"{total} for {context.context_tokens} tokens of context{room}"
    if (states := checked.states) is not None:
        slots = states_text(states.num_states, states.num_states * states.slot_bytes)
        yield "states", f"{slots}; {states.num_fitting} fit with the shortest context"
    yield "usable", f"{format_bytes(checked.usable_bytes)} ({checked.usable_reason})"


def _problems(checked: CheckDocument) -> dict[str, list[str]]:
    """Return the backends that cannot compute the model, by problem without the backend's name."""
    backends: dict[str, list[str]] = {}
    for fit in checked.backends:
        if not fit.computes:
            problem = fit.problem.removeprefix(f"the backend {fit.name} ")
            backends.setdefault(problem, []).append(fit.name)
    return backends


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"{'problem' if finding.stops else 'note'}: {finding.part.value}: {finding.problem}"
    if finding.hint and finding.stops:
        yield f"  hint: {finding.hint}"


def _count(number: int) -> str:
    """Return a number such as ``1.2 billion``."""
    if number >= 999.5e6:
        return f"{number / 1e9:.3g} billion"
    return f"{number / 1e6:.3g} million"
