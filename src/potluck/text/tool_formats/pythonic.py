"""Calls in Python syntax: ``[f(a=1, b="text"), g()]``.

LFM2 puts marks around the list. Llama 4 and Gemma 3 write it as the whole answer, if prompted for
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.grammars.build import json_schema
from potluck.text.tool_formats.schemas import comma_separated, definitions_of, members_of
from potluck.text.tool_formats.stream import MAX_NAME_CHARACTERS, CallStream, Steps
from potluck.text.tool_formats.syntax import CallableTool, LarkSource, ToolSyntax, either, repeated
from potluck.types.text import Tool

_NAME = re.compile(r"[^\s()\[\]{}=,'\"<>]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonicCalls(ToolSyntax):
    """A list of calls after one of ``openings``, or as the whole answer."""

    bare_openings: tuple[str, ...] = ("[",)

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a list of calls."""
        if opening not in self.openings:
            stream.return_to(stream.position - len(opening))
        if not (yield from stream.after_space("[")):
            return False
        while True:
            yield from stream.skip_space()
            if not (yield from self._read_call(stream)):
                return False
            if not (yield from stream.after_space(",")):
                break
        if not (yield from stream.after_space("]")):
            return False
        stream.drop_held()
        yield from stream.drop_marks(self.closes)
        return True

    def _read_call(self, stream: CallStream) -> Steps[bool]:
        name = yield from stream.run(_NAME, MAX_NAME_CHARACTERS)
        if not stream.is_known(name) or not (yield from stream.at("(")):
            return False
        yield from stream.skip_space()
        stream.begin_call(name)
        stream.argue("{")
        if not (yield from stream.at(")")):
            while True:
                yield from stream.skip_space()
                key = yield from stream.run(_NAME, MAX_NAME_CHARACTERS)
                if not key or not (yield from stream.after_space("=")):
                    return False
                yield from stream.skip_space()
                stream.argue(f"{json.dumps(key, ensure_ascii=False)}: ")
                if not (yield from stream.value(stream.argue)):
                    return False
                if (yield from stream.after_space(",")):
                    stream.argue(", ")
                elif (yield from stream.after_space(")")):
                    break
                else:
                    return False
        stream.argue("}")
        stream.end_call()
        return True

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a list of calls."""
        call = lark.rule(either(self._call(lark, tool) for tool in tools))
        many = repeated(call, separator='", "', is_parallel=is_parallel)
        close = lark.text(self.closes[0]) if self.closes else ""
        return f'"[" {many} "]" {close}'

    def _call(self, lark: LarkSource, tool: CallableTool) -> str:
        return f'{lark.text(tool.name + "(")} {self._arguments(lark, tool)} ")"'

    def _arguments(self, lark: LarkSource, tool: CallableTool) -> str:
        if tool.is_free:
            anything = lark.part(json_schema({}))
            member = f'/[A-Za-z_][A-Za-z0-9_]{{0,99}}/ "=" {anything}'
            return f'({member} (", " {member})*)?'
        definitions = definitions_of(tool.schema)
        members: list[tuple[str, bool]] = []
        for key, value, is_required in members_of(tool.schema, f"the arguments of {tool.name}"):
            part = lark.part(json_schema({**value, **definitions}))
            members.append((lark.rule(f"{lark.text(key + '=')} {part}"), is_required))
        return comma_separated(lark, members, '", "')


LFM2 = PythonicCalls(
    name="lfm2",
    openings=("<|tool_call_start|>",),
    closes=("<|tool_call_end|>",),
    control_texts=("<|tool_call_start|>", "<|tool_call_end|>"),
)

PYTHONIC = PythonicCalls(name="pythonic", writes_bare=True)
