"""Calls whose arguments are JSON: objects with the name and the arguments as values, or a name, a
mark, and the arguments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.text.control_tokens import parse_arguments
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

_NAME_KEYS = ("name", "tool_name", "function", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "tool_input")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCalls(ToolSyntax):
    """``{"name": ..., "arguments": {...}}`` after one of ``openings``, alone or in a list.

    An answer that begins with one of ``bare_openings`` is also read as a call if it has arguments.
    ``separators`` may occur between calls that are not in a list.

    The grammar allows white space around the calls of a section if it ``is_spaced``. It requires
    ``separator`` between calls that are not in a list, and the first of ``closes`` if
    ``writes_close`` is set. With ``id_key``, a call has a number before its name; ``last`` is the
    Lark expression of what may follow the arguments.
    """

    name_key: str = "name"
    arguments_key: str = "arguments"
    is_spaced: bool = False
    is_list: bool = False
    separators: tuple[str, ...] = ()
    separator: str = ""
    id_key: str = ""
    last: str = ""
    writes_close: bool = True

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section."""
        is_bare = opening not in self.openings
        if is_bare:
            stream.return_to(stream.position - len(opening))
        elif self.closes:
            yield from stream.at_one_of(self.closes)  # of an empty list or object (Llama 4)
        is_in_list = yield from stream.after_space("[")
        while True:
            yield from stream.skip_space()
            reader = _ObjectReader(stream)
            if not (yield from reader.read_object()) or not reader.finish(needs_arguments=is_bare):
                return False
            if is_in_list:
                if (yield from stream.after_space(",")):
                    continue
                if not (yield from stream.after_space("]")):
                    return False
                stream.drop_held()
                break
            if not (yield from self._passes_separator(stream)):
                break
        for close in self.closes:
            if (yield from stream.after_space(close)):
                stream.drop_held()
                break
        return True

    def _passes_separator(self, stream: CallStream) -> Steps[bool]:
        """Return whether another call follows directly; consume the separator."""
        before = stream.position
        for separator in self.separators:
            if (yield from stream.after_space(separator)):
                yield from stream.skip_space()
                character = yield from stream.peek()
                if character == "{":
                    return True
                if not character and stream.is_cut:
                    stream.drop_rest()  # the next call was cut off
                    return False
                stream.return_to(before)
        return False

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a section."""
        call = lark.rule(either(self._call(lark, tool) for tool in tools))
        if self.is_list:
            many = repeated(call, separator=f'"," {SPACE}', is_parallel=is_parallel)
            call = f'"[" {SPACE} {many} {SPACE} "]"'
        elif self.separator:
            separator = lark.text(self.separator)
            call = repeated(call, separator=separator, is_parallel=is_parallel)
        space = f"{SPACE} " if self.is_spaced else ""
        has_close = self.closes and self.writes_close and not self.writes_bare
        close = lark.text(self.closes[0]) if has_close else ""
        return f"{space}{call} {space}{close}"

    def _call(self, lark: LarkSource, tool: CallableTool) -> str:
        number = f'{{"{self.id_key}": "' if self.id_key else ""
        start = f"{lark.text(number)} /[0-9]{{1,3}}/ {lark.text(chr(34) + ', ')}" if number else ""
        name = json.dumps(tool.name, ensure_ascii=False)
        brace = "" if number else "{"
        head = f'{brace}"{self.name_key}": {name}, "{self.arguments_key}": '
        return f'{start} {lark.text(head)} {tool.arguments(lark)} {self.last} "}}"'


class _ObjectReader:
    """Reads the name and arguments of one call, in either order."""

    def __init__(self, stream: CallStream) -> None:
        self._stream = stream
        self.name = ""
        self.has_arguments = False
        self._early: str | None = None  # arguments that preceded the name
        self._has_begun = False

    def read_object(self, *, is_nested: bool = False) -> Steps[bool]:
        """Read an object with the name and the arguments, or one that contains such objects."""
        stream = self._stream
        if not (yield from stream.at("{")):
            return False
        while True:
            yield from stream.skip_space()
            key_json = yield from stream.string()
            if key_json is None or not (yield from stream.after_space(":")):
                return False
            yield from stream.skip_space()
            key = json.loads(key_json)
            is_object = (yield from stream.peek()) == "{"
            if key == "function" and is_object and not is_nested:
                is_read = yield from self.read_object(is_nested=True)
            elif key in _NAME_KEYS and not self.name:
                is_read = yield from self._read_name()
            elif key in _ARGUMENT_KEYS and not self.has_arguments:
                is_read = yield from self._read_arguments()
            else:
                is_read = yield from stream.value(_ignore)
            if not is_read:
                return False
            if not (yield from stream.after_space(",")):
                return (yield from stream.after_space("}"))

    def finish(self, *, needs_arguments: bool) -> bool:
        """End the call; return whether there is one."""
        if not self.name or (needs_arguments and not self.has_arguments):
            return False
        if not self._has_begun:
            self._begin("{}")
        self._stream.drop_held()
        return True

    def _read_name(self) -> Steps[bool]:
        text = yield from self._stream.string()
        if text is None:
            return False
        self.name = str(json.loads(text))
        if not self._stream.is_known(self.name):
            return False
        if self._early is not None:
            self._begin(self._early)
        return True

    def _read_arguments(self) -> Steps[bool]:
        self.has_arguments = True
        character = yield from self._stream.peek()
        if character == "{" and self.name:
            self._has_begun = True
            return (yield from self._stream.json_call(self.name))
        text = yield from self._read_whole(character)
        if text is None:
            return False
        if self.name:
            self._begin(text)
        else:
            self._early = text
        return True

    def _begin(self, arguments: str) -> None:
        self._stream.begin_call(self.name)
        self._stream.argue(arguments)
        self._stream.end_call()
        self._has_begun = True

    def _read_whole(self, character: str) -> Steps[str | None]:
        pieces: list[str] = []
        if not (yield from self._stream.value(pieces.append)):
            return None
        text = "".join(pieces)
        if character == '"':
            text = str(json.loads(text)).strip() or "{}"
            # A text with half of a surrogate pair has no UTF-8; the escape of one is valid JSON.
            text = text.encode(errors="backslashreplace").decode()
            return None if parse_arguments(text) is None else text
        if text == "null":
            return "{}"
        return text if character == "{" else None


def _ignore(_: str) -> None:
    pass


HERMES = JsonCalls(
    name="hermes",
    openings=("<tool_call>",),
    is_spaced=True,
    repeats=True,
    closes=("</tool_call>",),
    control_texts=("<tool_call>", "</tool_call>"),
    separators=("",),
)
r"""Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4 and many others: JSON in ``<tool_call>`` tags.

``<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>``, once for each call. Models that
write tags for arguments may write it too (``tagged_calls``).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls(ToolSyntax):
    """``head`` with the name, the arguments, and ``after``; then the next call, or ``closes``.

    ``head`` begins each call, with ``{name}`` for the name. If it contains ``{id}``, the grammar
    allows a match of ``id_pattern`` there, or with ``id_mark`` either nothing or the mark and a
    match. A head is read up to ``arguments_mark``, and ``name_pattern``, which has one group,
    extracts the name. In a format without ``call_opening``, each call is a section, which requires
    ``repeats``. ``ends`` are marks that may follow the arguments, in order.
    """

    head: str
    name_pattern: re.Pattern[str]
    arguments_mark: str
    id_pattern: str = "[0-9]{1,3}"
    id_mark: str = ""
    call_opening: str = ""
    ends: tuple[str, ...] = ()
    after: str = ""
    separator: str = ""

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section."""
        if not (yield from stream.calls(self.call_opening, lambda: self._read_call(stream))):
            return False
        yield from stream.drop_marks(self.closes)
        return True

    def _read_call(self, stream: CallStream) -> Steps[bool]:
        head = yield from stream.until(self.arguments_mark, 2 * MAX_NAME_CHARACTERS)
        match = self.name_pattern.fullmatch(head) if head is not None else None
        if match is None or not stream.is_known(match[1]):
            return False
        if not (yield from stream.json_call(match[1])):
            return False
        yield from stream.drop_marks(self.ends)
        return True

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a section."""
        call = lark.rule(either(self._call(lark, tool) for tool in tools))
        if self.call_opening:
            separator = SPACE if self.separator else ""
            call = repeated(call, separator=separator, is_parallel=is_parallel)
        return f"{call} {lark.text(self.closes[0])}" if self.closes else call

    def _call(self, lark: LarkSource, tool: CallableTool) -> str:
        head = f"{self.call_opening}{self.head}".replace("{name}", tool.name)
        call_id = f"/{self.id_pattern}/"
        if self.id_mark:
            call_id = f"({lark.text(self.id_mark)} {call_id})?"
        head = f" {call_id} ".join(lark.text(piece) for piece in head.split("{id}"))
        after = lark.text(self.after) if self.after else ""
        return f"{head} {tool.arguments(lark)} {after}"
