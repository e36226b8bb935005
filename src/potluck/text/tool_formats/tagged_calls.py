"""Calls with a tag for each argument, whose value is plain text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.grammars.build import json_schema
from potluck.text.delimiters import DelimiterScanner
from potluck.text.tool_formats.json_calls import HERMES
from potluck.text.tool_formats.schemas import (
    Schema,
    argument_json,
    branches,
    definitions_of,
    members_of,
    properties_of,
    text_expression,
    types_of,
)
from potluck.text.tool_formats.stream import MAX_NAME_CHARACTERS, CallStream, Steps
from potluck.text.tool_formats.syntax import (
    SPACE,
    CallableTool,
    LarkSource,
    ToolSyntax,
    either,
    repeated,
)
from potluck.types.text import Tool

_NAME = re.compile(r"[^\s<>]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedCalls(ToolSyntax):
    """``call_opening``, the name and ``name_end``, then the arguments, then ``call_close``.

    An argument is ``parameter_opening``, the key, one of ``key_ends``, the value and
    ``parameter_close``, with optional ``value_space`` on either side of the value. With
    ``text_key_end`` and ``json_key_end``, the end of the key determines how the value is written;
    otherwise the tool's schema does. Without ``name_end``, the name ends at white space or a tag.
    The grammar allows white space before parameters and the end of a call, and before calls and the
    end of a section if they are ``is_spaced``.
    """

    call_opening: str
    name_end: str
    parameter_opening: str
    key_ends: tuple[str, ...]
    parameter_close: str
    call_close: str
    text_key_end: str = ""
    json_key_end: str = ""
    value_space: str = ""
    is_spaced: bool = True

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section."""
        if opening == self.call_opening:
            stream.return_to(stream.position - len(opening))
        else:
            before = stream.position
            yield from stream.skip_space()
            if (yield from stream.peek()) == "{":  # as other models write it
                stream.return_to(before)
                return (yield from HERMES.read(stream, "<tool_call>", tools))
        calls = stream.calls(self.call_opening, lambda: self._read_call(stream, tools))
        if not (yield from calls):
            return False
        yield from stream.drop_marks(self.closes)
        return True

    def _read_call(self, stream: CallStream, tools: Sequence[Tool]) -> Steps[bool]:
        name: str | None
        if self.name_end:
            name = yield from stream.until(self.name_end, MAX_NAME_CHARACTERS)
        else:
            yield from stream.skip_space()
            name = yield from stream.run(_NAME, MAX_NAME_CHARACTERS)
        tool = next((each for each in tools if each.name == name), None)
        if name is None or tool is None:
            return False
        yield from stream.skip_space()
        before = stream.position
        if not (yield from stream.at_one_of((self.parameter_opening, self.call_close))):
            return False
        stream.return_to(before)
        stream.begin_call(name)
        stream.argue("{")
        properties = properties_of(tool.parameters)
        is_first = True
        while (yield from stream.after_space(self.parameter_opening)):
            if not (yield from self._read_parameter(stream, properties, tool, is_first=is_first)):
                return False
            is_first = False
        if not (yield from stream.after_space(self.call_close)):
            return False
        stream.argue("}")
        stream.end_call()
        return True

    def _read_parameter(
        self, stream: CallStream, properties: dict[str, Schema], tool: Tool, *, is_first: bool
    ) -> Steps[bool]:
        key = yield from stream.until(self.key_ends[0][:1], MAX_NAME_CHARACTERS)
        if key is None:
            return False
        stream.return_to(stream.position - 1)
        key_end = yield from stream.at_one_of(self.key_ends)
        if not key_end:
            return False
        key = key.strip()
        if self.text_key_end and key_end in (self.text_key_end, self.json_key_end):
            is_text = key_end == self.text_key_end
            types = frozenset(("string",)) if is_text else frozenset(("object",))
        else:
            types = types_of(properties.get(key, {}), tool.parameters)
        comma = "" if is_first else ", "
        stream.argue(f"{comma}{json.dumps(key, ensure_ascii=False)}: ")
        if self.value_space:
            yield from stream.at(self.value_space)
        if types != {"string"}:
            text = yield from stream.until(self.parameter_close)
            if text is None:
                return False
            stream.argue(argument_json(text.removesuffix(self.value_space), types))
            return True
        closes = (self.value_space + self.parameter_close, self.parameter_close)
        return (yield from stream.text_as_string(DelimiterScanner(closes), stream.argue))

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a section."""
        call = lark.rule(either(self._call(lark, tool) for tool in tools))
        if not self.repeats:
            call = repeated(call, is_parallel=is_parallel)
        if not self.closes:
            return call
        return f"{call} {self._spaced(lark.text(self.closes[0]))}"

    def _spaced(self, expression: str) -> str:
        return f"{SPACE} {expression}" if self.is_spaced else expression

    def _call(self, lark: LarkSource, tool: CallableTool) -> str:
        head = self._spaced(lark.text(f"{self.call_opening}{tool.name}{self.name_end}"))
        return f"{head} {self._parameters(lark, tool)} {SPACE} {lark.text(self.call_close)}"

    def _parameters(self, lark: LarkSource, tool: CallableTool) -> str:
        if tool.is_free:
            any_text = lark.until(self.parameter_close)
            key = lark.terminal(r"/[^<>\"=\s]{1,100}/")
            key_end = either(lark.text(each) for each in self.key_ends)
            return f"({SPACE} {lark.text(self.parameter_opening)} {key} {key_end} {any_text})*"
        schema = tool.schema
        pieces = []
        for key, value, is_required in members_of(schema, f"the arguments of {tool.name}"):
            parameter = lark.rule(self._parameter(lark, key, value, schema, tool.name))
            pieces.append(parameter if is_required else f"{parameter}?")
        return " ".join(pieces)

    def _parameter(
        self, lark: LarkSource, key: str, value: Schema, root: Schema, tool_name: str
    ) -> str:
        """Return the expression of an argument: a string is plain text, other values are JSON."""
        space = lark.text(self.value_space) if self.value_space else ""
        close = self.value_space + self.parameter_close

        def opening(key_end: str) -> str:
            head = f"{SPACE} {lark.text(f'{self.parameter_opening}{key}')}"
            ends = either(lark.text(each) for each in ((key_end,) if key_end else self.key_ends))
            return f"{head} {ends} {space}"

        texts, others = [], []
        for branch in branches(value, root):
            if branch.get("type") == "string" or not branch:
                text = text_expression(lark, branch, close, f"{key} of {tool_name}")
                texts.append(f"{opening(self.text_key_end)} {text}")
            else:
                json_value = lark.part(json_schema({**branch, **definitions_of(root)}))
                others.append(f"{opening(self.json_key_end)} {json_value} {lark.text(close)}")
        return either(dict.fromkeys((*texts, *others)))
