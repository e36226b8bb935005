"""gpt-oss (harmony): an output consists of messages with a channel and optionally a recipient.

``<|channel|>analysis<|message|>...<|end|>`` is reasoning, the channel ``final`` contains the
answer, and ``<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>`` is
a call; the recipient may also precede the channel. Commentary without a recipient is for the user.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from potluck.text.delimiters import DelimiterScanner
from potluck.text.tool_formats.chat_format import SteppedParser
from potluck.text.tool_formats.stream import CallStream, Steps
from potluck.text.tool_formats.syntax import (
    TEXT,
    LarkSource,
    callable_tools,
    either,
    is_constrained,
)
from potluck.types.output import OutputParser, ReasoningPart, ToolMode, ToolUse

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_CONTROL = frozenset((_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS))
_MAX_HEADER_CHARACTERS = 512
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*([a-z]+)")
_NEXT = f"{_START}assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonyFormat:
    """The format of gpt-oss (``potluck.types.output.OutputFormat``)."""

    name: ClassVar[str] = "harmony"
    control_tokens: frozenset[str]

    @property
    def control_texts(self) -> frozenset[str]:
        """Control tokens that the parser has to see."""
        return _CONTROL & self.control_tokens

    def parser(self, tool_use: ToolUse, *, prompt_end: str) -> OutputParser:
        """Return a parser for one output."""
        names = () if tool_use.mode is ToolMode.NONE else [tool.name for tool in tool_use.tools]
        return _HarmonyParser(names, _open_header(prompt_end))

    def grammar(
        self, tool_use: ToolUse, *, prompt_end: str, response: str | None = None
    ) -> str | None:
        """Return the grammar of the allowed outputs, or None if all are allowed."""
        lark = LarkSource(self.control_tokens)
        answer = self._answer(lark, tool_use, response)
        if answer is None:
            return None
        thought = f"{lark.until('<|end|>')} {lark.text(_NEXT)}"
        thoughts = f"({lark.text(f'{_CHANNEL}analysis{_MESSAGE}')} {thought})*"
        header = _open_header(prompt_end)
        if header is None:
            return lark.grammar(f"{thoughts} {answer}")
        if _channel_of(header) == "analysis":
            return lark.grammar(f"{thought} {thoughts} {answer}")
        return lark.grammar(TEXT if response is None else lark.part(response))

    def _answer(self, lark: LarkSource, tool_use: ToolUse, response: str | None) -> str | None:
        """Return the expression of the message after the reasoning; None if it is unconstrained."""
        final = lark.text(f"{_CHANNEL}final{_MESSAGE}")
        response_expression = None if response is None else f"{final} {lark.part(response)}"
        if not tool_use.tools or tool_use.mode is ToolMode.NONE:
            return response_expression
        tools = callable_tools(tool_use)
        calls = []
        for tool in tools:
            recipient = f" to=functions.{tool.name}"
            kind = either((lark.text(f" {_CONSTRAIN}json"), lark.text(" json")))
            channel = lark.text(f"{_CHANNEL}commentary")
            head = either(
                (f"{channel} {lark.text(recipient)}", f"{lark.text(recipient)} {channel}")
            )
            body = f"{lark.text(_MESSAGE)} {tool.arguments(lark)} {lark.text('<|call|>')}"
            calls.append(f"{head} {kind} {body}")
        call = lark.rule(either(calls))
        if tool_use.mode is ToolMode.REQUIRED:
            return call
        if response_expression is None and not is_constrained(tool_use):
            return None
        return either((call, response_expression or f"{final} {TEXT}"))


class _HarmonyParser(SteppedParser):
    def __init__(self, tool_names: Collection[str], header: str | None) -> None:
        super().__init__(CallStream(tool_names), self._read(header))

    def _read(self, header: str | None) -> Steps[None]:
        stream = self._stream
        while True:
            if header is None:
                header = yield from self._read_header()
            yield from self._read_message(header)
            header = None
            if not (yield from stream.peek()):
                break
        stream.finish()

    def _read_header(self) -> Steps[str]:
        """Read the header of a message; return an empty one if text without a header follows."""
        stream = self._stream
        while (yield from stream.at_one_of(_ENDS)):
            stream.drop_held()
        before = stream.position
        yield from stream.skip_space()
        is_header = yield from stream.at_one_of((_START, _CHANNEL, "to="))
        stream.return_to(before)
        if not is_header:
            return ""
        header = yield from stream.until(_MESSAGE, _MAX_HEADER_CHARACTERS)
        if header is None:
            if stream.is_cut:
                stream.drop_rest()
            elif (yield from stream.at(_START)):  # without a header it is text
                stream.give_up()
            return ""
        recipient = _RECIPIENT.search(header)
        if recipient is None or stream.is_known(recipient[1]):
            stream.drop_held()  # otherwise the text contains the recipient
        return header

    def _read_message(self, header: str) -> Steps[None]:
        stream = self._stream
        recipient = _RECIPIENT.search(header)
        if recipient is not None and stream.is_known(recipient[1]):
            if (yield from stream.json_call(recipient[1])):
                yield from stream.skip_space()
                stream.drop_held()
                return
            stream.give_up()
        ends = DelimiterScanner((*_ENDS, _START, _CHANNEL) if header else (*_ENDS, _START))
        if _channel_of(header) == "analysis":
            mark = yield from stream.text_pieces(
                ends, lambda text: stream.tell(ReasoningPart(text=text))
            )
        else:
            mark = yield from stream.read_text(ends)
        if mark in (_START, _CHANNEL):
            stream.return_to(stream.position - len(mark))
        else:
            stream.drop_held()


def _open_header(prompt_end: str) -> str | None:
    """Return the header of the message that the prompt has left open; None if there is none."""
    before, found, content = prompt_end.rpartition(_MESSAGE)
    if not found or any(end in content for end in (*_ENDS, _START)):
        return None
    header = before[max(before.rfind(_START), 0) :]
    return header or _MESSAGE


def _channel_of(header: str) -> str:
    match = _CHANNEL_NAME.search(header)
    return match[1] if match is not None else ""
