"""Tool calls of in-process models: the presentation of tools, and the parsing of calls."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from potluck.errors import ParameterError
from potluck.text.chat import ChatTemplate
from potluck.text.tool_formats import choose_output_format
from potluck.types.output import (
    OutputFormat,
    OutputParser,
    OutputPart,
    ReasoningPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
    ToolMode,
    ToolUse,
)
from potluck.types.text import Tokenizer, Tool, ToolCall


def tool_use(tools: Sequence[Tool], tool_choice: str, *, is_parallel: bool) -> ToolUse:
    """Return the use of ``tools``; ``tool_choice`` is a mode, or the name of a tool.

    Raise ``ParameterError`` if there is no such tool, or if two tools have the same name.
    """
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise ParameterError("tools", "two tools have the same name", hint="rename one of them")
    if tool_choice in names:
        return ToolUse(
            tools=tuple(tools),
            mode=ToolMode.REQUIRED,
            name=tool_choice,
            is_parallel=is_parallel,
        )
    modes = [mode.value for mode in ToolMode]
    if tool_choice not in modes:
        raise ParameterError(
            "tool_choice",
            f"tool_choice is {tool_choice[:40]!r}",
            hint=f"use {', '.join(modes)} or the name of a tool",
        )
    return ToolUse(tools=tuple(tools), mode=ToolMode(tool_choice), is_parallel=is_parallel)


def output_format(template: ChatTemplate | None, tokenizer: Tokenizer) -> OutputFormat:
    """Return the format in which a model with this template writes tool calls and reasoning."""
    source = "" if template is None else template.tool_source or template.source
    return choose_output_format(source, tokenizer.special_tokens)


@dataclass(slots=True)
class ChatOutput:
    """The state of parsing an output. Mutable; not thread-safe."""

    parser: OutputParser
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)

    def push(self, text: str, *, is_last: bool, is_cut: bool = False) -> str:
        """Parse more of the output, and return the part that is the answer's text.

        ``is_cut`` is as in ``OutputParser.finish``.
        """
        parts = [*self.parser.push(text)]
        if is_last:
            parts += self.parser.finish(is_cut=is_cut)
        return "".join(map(self._take, parts))

    def _take(self, part: OutputPart) -> str:
        match part:
            case TextPart(text=text):
                return text
            case ReasoningPart(text=text):
                self.reasoning += text
            case ToolCallStart(name=name):
                call_id = f"call_{secrets.token_hex(12)}"
                self.tool_calls.append(ToolCall(call_id=call_id, name=name, arguments=""))
            case ToolCallArguments(index=index, text=text):
                call = self.tool_calls[index]
                self.tool_calls[index] = ToolCall(
                    call_id=call.call_id, name=call.name, arguments=call.arguments + text
                )
        return ""
