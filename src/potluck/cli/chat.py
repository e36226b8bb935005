"""A chat with history on a terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from potluck.cli.output import note
from potluck.cli.report import figures_line
from potluck.errors import PromptTooLongError
from potluck.types.text import ChatMessage

if TYPE_CHECKING:
    from potluck.local import Generation

    Answer = Callable[[Sequence[ChatMessage]], Generation]

_HELP = "Type a message. /clear clears the history, /exit or Ctrl-D quits, Ctrl-C stops an answer."


def chat_loop(answer: Answer, opening: Sequence[ChatMessage]) -> None:
    """Read messages after ``opening`` and stream answers until the end of input."""
    with contextlib.suppress(ImportError):  # some builds of Python lack it
        import readline  # noqa: F401 - gives input() line editing and history
    messages = list(opening)
    note(_HELP)
    while (line := _read_line()) is not None:
        if line == "/exit":
            return
        if line == "/clear":
            messages = list(opening)
            note("History cleared.")
            continue
        if not line:
            continue
        asked = [*messages, ChatMessage(role="user", content=line)]
        try:
            generation = _start(answer, asked, len(opening))
        except PromptTooLongError as error:  # even alone: the chat goes on without it
            note(f"{error.message}\nhint: {error.hint}")
            continue
        messages = [*asked, ChatMessage(role="assistant", content=_stream(generation))]


def _read_line() -> str | None:
    """Read one message; None at the end of input. Ctrl-C clears the line."""
    while True:
        try:
            return input("> ").strip()
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print()


def _start(answer: Answer, messages: list[ChatMessage], num_opening: int) -> Generation:
    """Ask for an answer; the oldest turns are dropped from ``messages`` when they do not fit."""
    num_dropped = 0
    while True:
        try:
            generation = answer(messages)
        except PromptTooLongError:
            if len(messages) - num_opening <= 1:
                raise
            del messages[num_opening : num_opening + 2]
            num_dropped += 1
            continue
        if num_dropped == 1:
            note("(dropped the oldest turn, which no longer fits)")
        elif num_dropped:
            note(f"(dropped the {num_dropped} oldest turns, which no longer fit)")
        return generation


def _stream(generation: Generation) -> str:
    """Print an answer as it arrives; return its text, which Ctrl-C cuts short."""
    text = ""
    try:
        for piece in generation:
            print(piece.text, end="", flush=True)
            text += piece.text
    except KeyboardInterrupt:
        generation.close()
        print(" …")
        return text
    print()
    note(figures_line(generation.result().timings, load_seconds=None))
    return text
