"""Outputs with tool calls, taken apart."""

from __future__ import annotations

from collections.abc import Iterable

from support.text.chats import CLOCK, WEATHER, tools_of

from potluck.types.output import (
    OutputFormat,
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
    ToolMode,
    ToolUse,
)

TOOLS = tuple(tools_of([WEATHER, CLOCK]))

Found = list[str | tuple[str, str]]


def tool_use(mode: ToolMode = ToolMode.AUTO, **options: object) -> ToolUse:
    return ToolUse(tools=TOOLS, mode=mode, **options)  # type: ignore[arg-type]


def parse(
    output_format: OutputFormat,
    text: str,
    size: int = 10**9,
    *,
    prompt_end: str = "",
    use: ToolUse | None = None,
    is_cut: bool = False,
) -> Found:
    """The parts of ``text``, pushed in pieces of ``size``."""
    parser = output_format.parser(use or tool_use(), prompt_end=prompt_end)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    parts = [part for piece in pieces for part in parser.push(piece)]
    return found([*parts, *parser.finish(is_cut=is_cut)])


def found(parts: Iterable[OutputPart]) -> Found:
    """Text, thoughts with a tilde before them, and calls as pairs of name and arguments."""
    result: list[str | list[str]] = []
    calls: list[list[str]] = []
    for part in parts:
        match part:
            case ToolCallStart(index=index, name=name):
                assert index == len(calls)
                calls.append([name, ""])
                result.append(calls[-1])
            case ToolCallArguments(index=index, text=text):
                assert text
                calls[index][1] += text
            case TextPart(text=text) | ReasoningPart(text=text):
                assert text
                tilde = "~" if isinstance(part, ReasoningPart) else ""
                last = result[-1] if result else None
                if isinstance(last, str) and last.startswith("~") == bool(tilde):
                    result[-1] = last + text
                else:
                    result.append(tilde + text)
    return [each if isinstance(each, str) else (each[0], each[1]) for each in result]
