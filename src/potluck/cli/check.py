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
from potluck.cli.output import emit_json
from potluck.cli.spec_options import Quant
from potluck.cli.tables import states_text
from potluck.quantities import format_bytes, format_few
from potluck.types.memory import MemoryLimit

if TYPE_CHECKING:
    from potluck.local.check import ContextMemory, Finding, ModelCheck

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
    if json:
        emit_json(check_document(checked))
    else:
        for line in check_lines(checked):
            print(line)
    if not checked.runs:
        raise typer.Exit(1)


def _limit(option: str) -> MemoryLimit:
    return MemoryLimit(bytes=parse_size(option), reason="--memory-limit")


def check_lines(checked: ModelCheck) -> Iterator[str]:
    """Return what was found, for a person: facts first, then what is said about them."""
    rows = list(_rows(checked))
    indent = max((len(title) for title, _ in rows), default=0) + 2
    for title, text in rows:
        yield f"{title.ljust(indent)}{text}".rstrip()
    for finding in checked.findings:
        yield from _finding_lines(finding)
    yield "this machine can run the model" if checked.runs else "this machine cannot run the model"


def check_document(checked: ModelCheck) -> dict[str, object]:
    """Return the document of ``potluck check --json`` (schema ``potluck.check/1``)."""
    config = checked.config
    return {
        "schema": "potluck.check/1",
        "model": checked.files.name,
        "pinned": checked.files.pinned_name,
        "kind": checked.files.kind.value,
        "runs": checked.runs,
        "configuration": None
        if config is None
        else {
            "family": config.family,
            "num_layers": config.num_layers,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "max_context_tokens": config.max_context_tokens,
            "num_parameters": checked.num_parameters,
            "encoding": checked.encoding,
            "quantization": checked.quantization.value,
        },
        "stored_bytes": dict(checked.stored),
        "tokenizer_tokens": checked.num_tokens,
        "has_chat_template": checked.has_chat_template,
        "backends": [
            {"name": each.name, "computes": not each.problem, "problem": each.problem}
            for each in checked.backends
        ],
        "states": None
        if checked.states is None
        else {
            "slot_bytes": checked.states.slot_bytes,
            "num_states": checked.states.num_states,
            "num_fitting": checked.states.num_fitting,
        },
        "memory": [_memory_document(each) for each in checked.contexts],
        "usable_bytes": checked.limit.bytes,
        "usable_reason": checked.limit.reason,
        "findings": [
            {
                "part": each.part.value,
                "stops": each.stops,
                "problem": each.problem,
                "hint": each.hint,
                "missing": list(each.missing),
            }
            for each in checked.findings
        ],
    }


def _memory_document(each: ContextMemory) -> dict[str, object]:
    memory = each.memory
    held_bytes = memory.weights_bytes + memory.cache_bytes + memory.state_bytes
    return {
        "context_tokens": each.context_tokens,
        "fits": each.fits,
        "total_bytes": memory.total_bytes,
        "weights_bytes": memory.weights_bytes,
        "cache_bytes": memory.cache_bytes,
        "state_bytes": memory.state_bytes,
        "other_bytes": memory.total_bytes - held_bytes,
    }


def _rows(checked: ModelCheck) -> Iterator[tuple[str, str]]:
    """Titles and facts, as far as they are known."""
    config = checked.config
    if config is not None:
        parameters = f", {_count(checked.num_parameters)} parameters" * bool(checked.num_parameters)
        yield (
            "model",
            f"{config.family}, {config.num_layers} layers{parameters}, "
            f"up to {config.max_context_tokens} tokens of context",
        )
    if checked.stored:
        parts = ", ".join(f"{label} {format_bytes(size)}" for label, size in checked.stored)
        encoding = f"; stored as {checked.encoding}" if checked.encoding else ""
        yield "weights", f"{parts}{encoding}"
    if checked.num_tokens is not None:
        yield "tokenizer", f"{checked.num_tokens} tokens"
    if checked.has_chat_template:
        yield "chat", "template works"
    if checked.backends:
        computing = [fit.name for fit in checked.backends if not fit.problem]
        yield "backends", format_few(computing, _NUM_NAMES) if computing else "none"
        for problem, names in _problems(checked).items():
            yield "", f"not {format_few(names, _NUM_NAMES)}: {problem}"
    for index, context in enumerate(checked.contexts):
        title = "memory" if index == 0 else ""
        room = "" if context.fits else ", which is too much"
        total = format_bytes(context.memory.total_bytes)
        yield title, f"{total} for {context.context_tokens} tokens of context{room}"
    if (states := checked.states) is not None:
        slots = states_text(states.num_states, states.num_states * states.slot_bytes)
        yield "states", f"{slots}; {states.num_fitting} fit with the shortest context"
    yield "usable", f"{format_bytes(checked.limit.bytes)} ({checked.limit.reason})"


def _problems(checked: ModelCheck) -> dict[str, list[str]]:
    """The backends that do not compute the model, by what they say without their name."""
    backends: dict[str, list[str]] = {}
    for fit in checked.backends:
        if fit.problem:
            problem = fit.problem.removeprefix(f"the backend {fit.name} ")
            backends.setdefault(problem, []).append(fit.name)
    return backends


def _finding_lines(finding: Finding) -> Iterator[str]:
    yield f"{'problem' if finding.stops else 'note'}: {finding.part.value}: {finding.problem}"
    if finding.hint and finding.stops:
        yield f"  hint: {finding.hint}"


def _count(number: int) -> str:
    """``1.2 billion`` and the like."""
    if number >= 999.5e6:
        return f"{number / 1e9:.3g} billion"
    return f"{number / 1e6:.3g} million"
