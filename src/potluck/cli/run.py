"""``potluck run``: complete a text, answer a message, or chat, with a model in this process."""

from __future__ import annotations

import sys
import time
from functools import partial
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from potluck import grammars
from potluck.cli.chat import chat_loop
from potluck.cli.options import (
    AllowSoftwareOption,
    ArithmeticOption,
    ContextOption,
    DraftOption,
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
from potluck.cli.output import emit_json, note, opened_model
from potluck.cli.report import figures_line, run_document, sampling_line, stage_lines
from potluck.cli.spec_options import Quant
from potluck.errors import UsageError
from potluck.types.sampling import default_sampling
from potluck.types.text import ChatMessage

if TYPE_CHECKING:
    from potluck.local import SamplingOptions


def run(
    model: ModelArgument,
    prompt: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--prompt",
            help="Prompt to complete; with --chat, a message to answer. Default: an interactive "
            "chat on a terminal, otherwise the prompt is read from standard input.",
            show_default=False,
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Treat the prompt as a chat message (applies the chat template)."
        ),
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="System message.", show_default=False)
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--max-tokens",
            help="Maximum number of new tokens. Default: until the context is full.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            help="Sampling temperature; 0 always picks the most likely token.",
            show_default=False,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k", help="Sample only from the k most likely tokens.", show_default=False
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            help="Sample only from the most likely tokens whose probabilities add up to p.",
            show_default=False,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            "--min-p",
            help="Sample only from tokens that are at least p times as likely as the most "
            "likely one.",
            show_default=False,
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            "--repetition-penalty",
            help="Values above 1 discourage tokens that occur in the prompt or the output.",
            show_default=False,
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            "--frequency-penalty",
            help="Values above 0 discourage tokens in proportion to how often they occur in "
            "the output.",
            show_default=False,
        ),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            "--presence-penalty",
            help="Values above 0 discourage tokens that occur in the output.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Random seed; the same seed gives the same text. Default: random.",
            show_default=False,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="<str>",
            help="Stop before this text is generated. Can be repeated.",
            show_default=False,
        ),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--json-schema",
            metavar="<file>",
            help="Restrict the output to JSON documents that match the schema in this file.",
            show_default=False,
        ),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(
            "--grammar",
            metavar="<file>",
            help="Restrict the output to the grammar in this file (Lark or GBNF).",
            show_default=False,
        ),
    ] = None,
    top_logprobs: Annotated[
        int,
        typer.Option("--top-logprobs", help="Number of alternatives per token in --json, 0 to 20."),
    ] = 0,
    stages: StagesOption = 1,
    context: ContextOption = None,
    states: StatesOption = None,
    threads: ThreadsOption = None,
    backend: LocalBackendOption = None,
    allow_software: AllowSoftwareOption = False,
    quant: QuantOption = Quant.NONE,
    mmap: MmapOption = False,
    arithmetic: ArithmeticOption = None,
    draft: DraftOption = None,
    json: JsonOption = False,
) -> None:
    """Generate text with MODEL: text goes to stdout, statistics to stderr."""
    if prompt is None and sys.stdin is None:
        raise UsageError("there is no prompt and no standard input", hint='add -p "…"')
    is_conversation = prompt is None and sys.stdin.isatty()
    if is_conversation and json:
        raise UsageError("--json needs a prompt", hint='add -p "…", or pipe the prompt in')
    if top_logprobs and not json:
        raise UsageError("--top-logprobs needs --json", hint="add --json")
    if system is not None and not (chat or is_conversation):
        raise UsageError("--system only applies to a chat", hint="add --chat, or omit -p")
    if is_conversation and (json_schema or grammar):
        raise UsageError("a grammar needs a prompt", hint='add -p "…", or pipe the prompt in')
    chosen = settings()
    output_grammar = _grammar(json_schema, grammar)
    sampling: SamplingOptions = {"logprobs": json, "top_logprobs": top_logprobs}
    for name, value in (
        ("temperature", temperature),
        ("top_k", top_k),
        ("top_p", top_p),
        ("min_p", min_p),
        ("repetition_penalty", repetition_penalty),
        ("frequency_penalty", frequency_penalty),
        ("presence_penalty", presence_penalty),
        ("seed", seed),
    ):
        if value is not None:
            sampling[name] = value  # type: ignore[literal-required]

    started = time.perf_counter()
    with opened_model(
        model,
        chosen,
        stages=stages,
        context=context if context is not None else chosen.context,
        states=states,
        default_states=chosen.states,
        threads=threads,
        backend=backend,
        allow_software=allow_software,
        quantization=quant.quantization,
        mmap=mmap,
        arithmetic=arithmetic,
        draft=resolve_draft(draft, chosen),
    ) as opened:
        load_seconds = time.perf_counter() - started
        if stages > 1:
            for line in stage_lines(opened.plan):
                note(line)
        recommended = default_sampling(opened.description.sampling_defaults)
        chosen_line = sampling_line(recommended | sampling)
        opening = [] if system is None else [ChatMessage(role="system", content=system)]
        answer = partial(opened.chat, max_tokens=max_tokens, stop=stop or (), **sampling)
        if is_conversation:
            note(chosen_line)
            chat_loop(answer, opening)
            return
        text = sys.stdin.read() if prompt is None else prompt
        if chat:
            messages = [*opening, ChatMessage(role="user", content=text)]
            generation = answer(messages, grammar=output_grammar)
        else:
            generation = opened.generate(
                text, max_tokens=max_tokens, stop=stop or (), grammar=output_grammar, **sampling
            )
        if json:
            emit_json(run_document(opened, generation, load_seconds=load_seconds))
            return
        for piece in generation:
            print(piece.text, end="", flush=True)
        print(flush=True)
        figures = figures_line(
            generation.result().timings, load_seconds=load_seconds, experts=opened.expert_use
        )
        note(f"{figures}; {chosen_line}")


def _grammar(json_schema: Path | None, grammar: Path | None) -> str | None:
    if json_schema is not None and grammar is not None:
        raise UsageError(
            "--json-schema and --grammar cannot be used together", hint="omit one of them"
        )
    if grammar is not None:
        return grammars.ebnf(_text(grammar, "--grammar"))
    if json_schema is None:
        return None
    try:
        schema = loads(_text(json_schema, "--json-schema"))
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{json_schema} is not valid JSON: {error}", hint="give a file with a JSON schema"
        ) from error
    if not isinstance(schema, dict):
        raise UsageError(
            f"{json_schema} is not a JSON schema", hint="a JSON schema is a JSON object"
        )
    return grammars.json_schema(schema)


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"cannot read {path}: {error}", hint=f"give {option} a text file"
        ) from error
