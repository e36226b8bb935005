"""Gemma 4 and FunctionGemma: ``call:f{a:1,b:"text"}``, with a control token for quotes.

Keys are not quoted. Gemma 4 quotes strings with ``<|"|>``, FunctionGemma with ``<escape>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from potluck.errors import ParameterError
from potluck.grammars.build import json_schema
from potluck.text.delimiters import DelimiterScanner
from potluck.text.tool_formats.schemas import (
    Schema,
    as_schema,
    branches,
    comma_separated,
    json_value,
    members_of,
    require_only,
    text_expression,
)
from potluck.text.tool_formats.stream import MAX_NAME_CHARACTERS, CallStream, Steps
from potluck.text.tool_formats.syntax import CallableTool, LarkSource, ToolSyntax, either
from potluck.types.text import Tool

_MAX_DEPTH = 64
_MAX_RULES = 10_000
_NAME = re.compile(r"[^\s{}<>]*")
_KEY = re.compile(r"[^\s:{}\[\],<>]*")
_PLAIN = re.compile(r"[^{}\[\],<>]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaCalls(ToolSyntax):
    """Calls with strings between two ``quote`` marks."""

    quote: str
    repeats: bool = True

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a call."""
        if not (yield from stream.after_space("call:")):
            return False
        name = yield from stream.run(_NAME, MAX_NAME_CHARACTERS)
        if not stream.is_known(name) or (yield from stream.peek()) != "{":
            return False
        stream.begin_call(name)
        if not (yield from self._value(stream, stream.argue, _MAX_DEPTH)):
            return False
        stream.end_call()
        yield from stream.drop_marks(self.closes)
        return True

    def _value(self, stream: CallStream, take: Callable[[str], None], depth: int) -> Steps[bool]:
        """Read a value, and pass it to ``take`` as JSON."""
        if (yield from stream.at(self.quote)):
            return (yield from self._text(stream, take))
        character = yield from stream.peek()
        if not character or depth == 0:
            return False
        if character == '"':
            return (yield from stream.value(take))
        if character not in "{[":
            text = yield from stream.run(_PLAIN)
            if not (yield from stream.peek()) or not text.strip():
                stream.return_to(stream.position - len(text))
                return False
            take(json_value(text) or json.dumps(text.strip(), ensure_ascii=False))
            return True
        close = "}" if character == "{" else "]"
        yield from stream.at(character)
        take(character)
        is_first = True
        while True:
            yield from stream.skip_space()
            if is_first and (yield from stream.at(close)):
                take(close)
                return True
            if close == "}":
                if not (yield from self._key(stream, take)):
                    return False
                yield from stream.skip_space()
            if not (yield from self._value(stream, take, depth - 1)):
                return False
            is_first = False
            yield from stream.skip_space()
            if (yield from stream.at(",")):
                take(", ")
            elif (yield from stream.at(close)):
                take(close)
                return True
            else:
                return False

    def _key(self, stream: CallStream, take: Callable[[str], None]) -> Steps[bool]:
        pieces: list[str] = []
        if (yield from stream.at(self.quote)):
            if not (yield from self._text(stream, pieces.append)):
                return False
        elif (yield from stream.peek()) == '"':
            if not (yield from stream.value(pieces.append)):
                return False
        else:
            key = yield from stream.run(_KEY, MAX_NAME_CHARACTERS)
            if not key:
                return False
            pieces.append(json.dumps(key, ensure_ascii=False))
        if not (yield from stream.after_space(":")):
            return False
        take("".join(pieces) + ": ")
        return True

    def _text(self, stream: CallStream, take: Callable[[str], None]) -> Steps[bool]:
        return (yield from stream.text_as_string(DelimiterScanner((self.quote,)), take))

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a call without its opening."""
        calls = (self._call(lark, tool) for tool in tools)
        return f"{lark.rule(either(calls))} {lark.text(self.closes[0])}"

    def _call(self, lark: LarkSource, tool: CallableTool) -> str:
        head = lark.text(f"call:{tool.name}")
        if tool.is_free:
            return f"{head} {self._any_object(lark)}"
        where = f"the arguments of {tool.name}"
        return f"{head} {self._of(lark, tool.schema, tool.schema, where, _MAX_DEPTH)}"

    def _any_object(self, lark: LarkSource) -> str:
        """Return the expression of any object; its rules are recursive."""
        key = r"/[^\s:{}\[\],<>\"]{1,100}/"
        value = f"({self._any_value(lark)})"
        members = f'{key} ":" {value} ("," {key} ":" {value})*'
        lark.named_rule("any_object", f'"{{" ({members})? "}}"')
        lark.named_rule("any_list", f'"[" ({value} ("," {value})*)? "]"')
        return "any_object"

    def _any_value(self, lark: LarkSource) -> str:
        """Return the alternatives for any value; ``_any_object`` adds their rules."""
        text = f"{lark.text(self.quote)} {lark.until(self.quote)}"
        scalar = lark.part(json_schema({"type": ["number", "boolean", "null"]}))
        return f"any_object | any_list | {text} | {scalar}"

    def _of(self, lark: LarkSource, schema: Schema, root: Schema, where: str, depth: int) -> str:
        """Return the rule for values of ``schema``; a referenced schema may contain itself."""
        key = f"{id(root)} {json.dumps(schema, sort_keys=True, default=str)}"
        rule, is_new = lark.reserved_rule(key)
        if is_new:
            if depth == 0 or lark.num_rules > _MAX_RULES:
                raise ParameterError(
                    "tools", f"the schema of {where} is nested too deeply, or too large"
                )
            options = [
                self._branch(lark, each, root, where, depth) for each in branches(schema, root)
            ]
            lark.define(rule, either(dict.fromkeys(options)))
        return rule

    def _branch(
        self, lark: LarkSource, schema: Schema, root: Schema, where: str, depth: int
    ) -> str:
        kind = schema.get("type")
        if kind == "string":
            return f"{lark.text(self.quote)} {text_expression(lark, schema, self.quote, where)}"
        if kind == "array":
            require_only(schema, ("type", "items", "minItems", "maxItems"), where)
            items = as_schema(schema.get("items"))
            item = self._of(lark, items, root, f"the items of {where}", depth - 1)
            return f'"[" {_repeated(item, schema, where)} "]"'
        if kind == "object" and isinstance(schema.get("properties"), Mapping):
            return self._object(lark, schema, root, where, depth)
        if kind in ("object", None):
            require_only(schema, ("type", "additionalProperties"), where)
            any_object = self._any_object(lark)
            return any_object if kind == "object" else self._any_value(lark)
        return lark.part(json_schema(schema))

    def _object(
        self, lark: LarkSource, schema: Schema, root: Schema, where: str, depth: int
    ) -> str:
        members = []
        for key, value, is_required in members_of(schema, where):
            of = self._of(lark, value, root, f"{key} of {where}", depth - 1)
            members.append((lark.rule(f"{lark.text(key + ':')} {of}"), is_required))
        return f'"{{" {comma_separated(lark, members, lark.text(","))} "}}"'


def _repeated(item: str, schema: Schema, where: str) -> str:
    low, high = schema.get("minItems", 0), schema.get("maxItems")
    if not isinstance(low, int) or not (high is None or isinstance(high, int)):
        raise ParameterError("tools", f"minItems and maxItems of {where} are not integers")
    if high is not None and high <= 0:
        return ""
    upper = "" if high is None else str(high - 1)
    many = f'{item} ("," {item}){{{max(low - 1, 0)},{upper}}}'
    return many if low else f"({many})?"


GEMMA = GemmaCalls(
    name="gemma",
    openings=("<|tool_call>",),
    closes=("<tool_call|>",),
    quote='<|"|>',
    control_texts=("<|tool_call>", "<tool_call|>", '<|"|>'),
)

FUNCTION_GEMMA = GemmaCalls(
    name="function-gemma",
    openings=("<start_function_call>",),
    closes=("<end_function_call>",),
    quote="<escape>",
    control_texts=("<start_function_call>", "<end_function_call>", "<escape>"),
)
