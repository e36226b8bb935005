"""Calls that consist of a name, a mark, and the arguments as JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from potluck.text.tool_formats.lark import SPACE, LarkSource, either, repeated
from potluck.text.tool_formats.stream import MAX_NAME_CHARACTERS, CallStream, Steps
from potluck.text.tool_formats.syntax import CallableTool
from potluck.types.text import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCalls:
    """``head`` with the name, the arguments, and ``after``; then the next call, or ``closes``.

    ``head`` begins each call, with ``{name}`` for the name. If it contains ``{id}``, the grammar
    allows a match of ``id_pattern`` there, or with ``id_mark`` either nothing or the mark and a
    match. A head is read up to ``arguments_mark``, and ``name_pattern``, which has one group,
    extracts the name. In a format without ``call_opening``, each call begins with one of
    ``openings``. ``ends`` are marks that may follow the arguments, in order.
    """

    name: str
    openings: tuple[str, ...]
    head: str
    name_pattern: re.Pattern[str]
    arguments_mark: str
    id_pattern: str = "[0-9]{1,3}"
    id_mark: str = ""
    call_opening: str = ""
    ends: tuple[str, ...] = ()
    after: str = ""
    separator: str = ""
    closes: tuple[str, ...] = ()
    control_texts: tuple[str, ...] = ()
    bare_openings: tuple[str, ...] = ()

    @property
    def writes_bare(self) -> bool:
        """Whether the grammar allows calls without an opening: never."""
        return False

    @property
    def repeats(self) -> bool:
        """Whether each of several calls is a section."""
        return not self.call_opening

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section."""
        is_first = True
        while True:
            if self.call_opening:
                found = yield from stream.after_space(self.call_opening)
                if not found:
                    if is_first:
                        return False
                    break
            is_whole = yield from self._read_call(stream)
            if not is_whole:
                return False
            is_first = False
            if not self.call_opening:
                break
        for close in self.closes:
            if (yield from stream.after_space(close)):
                stream.drop_held()
        return True

    def _read_call(self, stream: CallStream) -> Steps[bool]:
        head = yield from stream.until(self.arguments_mark, 2 * MAX_NAME_CHARACTERS)
        match = self.name_pattern.fullmatch(head) if head is not None else None
        if match is None or not stream.is_known(match[1]):
            return False
        yield from stream.skip_space()
        if (yield from stream.peek()) != "{":
            return False
        stream.begin_call(match[1])
        if not (yield from stream.value(stream.argue)):
            return False
        stream.end_call()
        for end in self.ends:
            if (yield from stream.after_space(end)):
                stream.drop_held()
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
