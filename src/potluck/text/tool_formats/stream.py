"""Parse an output that is still being generated.

Parsers are generators: a parser that needs more text yields, and resumes when more has arrived. So
each is written as if the whole text were available, and its result does not depend on how the text
was divided.

Text that a parser has read but not passed on is *held*. It either becomes part of a call, or the
parser gives up and it becomes text: nothing is dropped except marks, and white space next to calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Generator, Sequence
from typing import TypeVar

from potluck.text.delimiters import DelimiterScanner
from potluck.types.output import (
    OutputPart,
    TextPart,
    ToolCallArguments,
    ToolCallStart,
)

_T = TypeVar("_T")
Steps = Generator[None, None, _T]
"""A reader that yields whenever it needs more text."""

MAX_NAME_CHARACTERS = 256

_LEAST_MARK = 3
"""The beginning of a mark at the end of an output that was cut is dropped if it is that long."""

_SPACE = re.compile(r"\s*")
_PLAIN = {'"': re.compile(r'[^"\\\x00-\x1f]+'), "'": re.compile(r"[^'\"\\\x00-\x1f]+")}
_SCALAR = re.compile(r"[-+.\w]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?", re.ASCII)
_WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_CONTROLS = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
_HEX = re.compile("[0-9a-fA-F]{4}")


class TextReader:
    """The text of one output as parsers read it. The position advances past text that was read.

    Text that is held can be read again. Use from one thread.
    """

    def __init__(self) -> None:
        self._text = ""
        self._base = 0  # the position of the first character of _text
        self._held_from = 0
        self._position = 0
        self._is_end = False
        self.is_cut = False
        """Whether the end was reached, and the output did not end by itself."""

    def add(self, text: str) -> None:
        """Take more text."""
        self._text = self._text[self._held_from - self._base :] + text
        self._base = self._held_from

    def end(self, *, is_cut: bool = False) -> None:
        """Note that no more text follows; ``is_cut`` if the output did not end by itself."""
        self._is_end = True
        self.is_cut = is_cut

    @property
    def position(self) -> int:
        """Position up to which the text was read."""
        return self._position

    def return_to(self, position: int) -> None:
        """Move back to ``position``, or to the beginning of the held text if that is later.

        ``at`` may have dropped the rest, which is not read again.
        """
        self._position = max(position, self._held_from)

    def drop_rest(self) -> None:
        """Drop the held text and everything after it, which belongs to a call that was cut off."""
        self._position = self._held_from = self._base + len(self._text)

    def peek(self) -> Steps[str]:
        """Return the next character without consuming it; empty at the end."""
        while not self._rest(1):
            if self._is_end:
                return ""
            yield
        return self._rest(1)

    def at(self, text: str) -> Steps[bool]:
        """Consume ``text`` if it comes next, and return whether it did."""
        while True:
            rest = self._rest(len(text))
            if rest == text:
                self._position += len(text)
                return True
            if not text.startswith(rest):
                return False
            if self._is_end:
                if self.is_cut and rest:
                    self.drop_rest()  # the beginning of a mark
                return False
            yield

    def at_one_of(self, texts: Sequence[str]) -> Steps[str]:
        """Consume the first of ``texts`` that comes next, and return it; empty if none does."""
        for text in texts:
            if (yield from self.at(text)):
                return text
        return ""

    def skip_space(self) -> Steps[None]:
        """Consume white space."""
        while (yield from self.peek()).isspace():
            self._position = self._end_of(_SPACE, self._position)

    def after_space(self, text: str) -> Steps[bool]:
        """Consume white space and ``text`` if they come next; consume nothing otherwise."""
        before = self._position
        yield from self.skip_space()
        if (yield from self.at(text)):
            return True
        self.return_to(before)
        return False

    def run(self, pattern: re.Pattern[str], max_characters: int | None = None) -> Steps[str]:
        """Consume everything that ``pattern`` matches, up to ``max_characters``, and return it.

        The pattern is any number of characters of a class, so that it can continue to match.
        """
        end = self._position
        while True:
            end = self._end_of(pattern, end)
            is_long = max_characters is not None and end - self._position >= max_characters
            if is_long or self._is_end or end < self._base + len(self._text):
                text = self._text[self._position - self._base : end - self._base][:max_characters]
                self._position += len(text)
                return text
            yield

    def until(self, mark: str, max_characters: int | None = None) -> Steps[str | None]:
        """Consume text up to ``mark`` and the mark; return the text.

        If there is no mark within ``max_characters``, return None and consume nothing.
        """
        searched = self._position
        while True:
            index = self._text.find(mark, searched - self._base)
            start = self._position - self._base
            length = len(self._text) - len(mark) if index < 0 else index
            if max_characters is not None and length - start > max_characters:
                return None
            if index >= 0:
                self._position = self._base + index + len(mark)
                return self._text[start:index]
            if self._is_end:
                return None
            searched = max(self._position, self._base + len(self._text) - len(mark) + 1)
            yield

    def text_pieces(self, marks: DelimiterScanner, take: Callable[[str], None]) -> Steps[str]:
        """Consume text up to a mark and the mark, and pass the text to ``take`` as it arrives.

        Return the mark, which is held, or an empty string if the text ended first.
        """
        while True:
            start = self._position - self._base
            index, found = marks.find(self._text, start, is_end=self._is_end)
            piece = self._text[start:index]
            self._position = self._base + index
            if piece:
                take(piece)
            self._position += len(found)
            if found or self._is_end:
                return found
            yield

    def text_as_string(self, marks: DelimiterScanner, take: Callable[[str], None]) -> Steps[bool]:
        """Consume text up to a mark and the mark, and pass the text to ``take`` as a JSON string.

        Return whether there is a mark; if not, the end of the string was not passed on.
        """
        take('"')
        found = yield from self.text_pieces(
            marks, lambda text: take(json.dumps(text, ensure_ascii=False)[1:-1])
        )
        if found:
            take('"')
        return bool(found)

    def string(self) -> Steps[str | None]:
        """Consume a JSON string and return its text as JSON, or None if it is invalid."""
        pieces: list[str] = []
        if (yield from self.peek()) != '"':
            return None
        return "".join(pieces) if (yield from self._string(pieces.append)) else None

    def value(self, take: Callable[[str], None]) -> Steps[bool]:
        """Consume a JSON value, and pass its text to ``take`` as it arrives.

        Common mistakes of models are corrected: control characters and unknown escapes within
        strings, single quotes, and Python's literals. Return whether the value is well-formed; if
        not, the text read so far has been passed on.
        """
        closers: list[str] = []
        expects = "value"
        while True:
            before = self._position
            yield from self.skip_space()
            space = self._text[before - self._base : self._position - self._base]
            character = yield from self.peek()
            if closers and expects != "value" and character == closers[-1]:
                if expects == "key":  # after a comma
                    return False
                closers.pop()
                self._position += 1
                take(space + character)
                expects = "next"
            elif expects in ("value", "value or end"):
                if space:
                    take(space)
                if character and character in "{[":
                    self._position += 1
                    take(character)
                    closers.append("}" if character == "{" else "]")
                    expects = "key or end" if character == "{" else "value or end"
                    continue
                if not (yield from self._scalar(take)):
                    return False
                expects = "next"
            elif expects in ("key", "key or end"):
                if space:
                    take(space)
                if not (character and character in "\"'" and (yield from self._string(take))):
                    return False
                if not (yield from self.after_space(":")):
                    return False
                take(":")
                expects = "value"
            elif character == ",":
                self._position += 1
                take(space + ",")
                expects = "key" if closers[-1] == "}" else "value"
            else:
                self._position = before
                return False
            if not closers:
                return True

    def _rest(self, max_characters: int) -> str:
        start = self._position - self._base
        return self._text[start : start + max_characters]

    def _end_of(self, pattern: re.Pattern[str], position: int) -> int:
        match = pattern.match(self._text, position - self._base)
        assert match is not None, f"{pattern.pattern} does not match the empty text"
        return self._base + match.end()

    def _scalar(self, take: Callable[[str], None]) -> Steps[bool]:
        character = yield from self.peek()
        if character and character in "\"'":
            return (yield from self._string(take))
        before = self._position
        text = yield from self.run(_SCALAR, MAX_NAME_CHARACTERS)
        word = _WORDS.get(text, text if _NUMBER.fullmatch(text) else "")
        if not word or (self._is_end and not self._rest(1)):
            self._position = before
            return False
        take(word)
        return True

    def _string(self, take: Callable[[str], None]) -> Steps[bool]:
        quote = self._rest(1)
        self._position += 1
        take('"')
        while True:
            character = yield from self.peek()
            if not character:
                return False
            plain = _PLAIN[quote].match(self._text, self._position - self._base)
            if plain is not None:
                self._position = self._base + plain.end()
                take(plain[0])
                continue
            if character == "\\":
                escaped = yield from self._escape()
                if escaped is None:
                    return False
                take(escaped)
                continue
            self._position += 1
            if character == quote:
                take('"')
                return True
            if character == '"':
                take('\\"')
            else:
                take(_CONTROLS.get(character, f"\\u{ord(character):04x}"))

    def _escape(self) -> Steps[str | None]:
        """Consume an escape; None if it is incomplete at the end."""
        while len(self._rest(2)) < 2:
            if self._is_end:
                return None
            yield
        letter = self._rest(2)[1]
        if letter == "u":
            while len(self._rest(6)) < 6:
                if self._is_end:
                    return None
                yield
            if _HEX.fullmatch(self._rest(6)[2:]):
                escape = self._rest(6)
                self._position += 6
                return escape
        elif letter in '"\\/bfnrt':
            self._position += 2
            return "\\" + letter
        elif letter == "'":
            self._position += 2
            return "'"
        self._position += 1
        return "\\\\"  # a literal backslash


class CallStream(TextReader):
    """The text of one output, and the parts that its parsers produce.

    ``tool_names`` are the tools that may be called.
    """

    def __init__(self, tool_names: Collection[str]) -> None:
        super().__init__()
        self._tool_names = frozenset(tool_names)
        self._parts: list[OutputPart] = []
        self._space = ""  # at the end of the available text
        self._num_calls = 0
        self._is_after_call = False
        self._is_call_open = False
        self._has_named_tool = False  # in the held text

    def take_parts(self) -> Sequence[OutputPart]:
        """Return the parts added since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def read_text(self, marks: DelimiterScanner, *, may_be_text: bool = True) -> Steps[str]:
        """Pass on text up to the first of ``marks``; return the mark, or an empty string at the
        end.

        The mark is held. At the end of an output that was cut, the beginning of a mark is dropped;
        if it ``may_be_text``, only if it is long or follows a call.
        """
        while True:
            start = self._position - self._base
            index, mark = marks.find(self._text, start, is_end=self._is_end)
            if self.is_cut and not mark:
                begun, _ = marks.find(self._text, start, is_end=False)
                is_long = len(self._text) - begun >= _LEAST_MARK
                is_mark = is_long or self._is_after_call or not may_be_text
                index = begun if is_mark else index
            self._position = self._base + index
            self._pass_on_held()
            self._has_named_tool = False
            self._position += len(mark)
            if mark or self._is_end:
                return mark
            yield

    def give_up(self, *, may_be_text: bool = False) -> None:
        """Pass on held text as text, because it is malformed.

        At the end of the output, it is instead more of the arguments of an open call, which was cut
        off. The beginning of a call that was cut off is dropped; if it ``may_be_text``, only if it
        names a tool or follows another call.
        """
        self._is_call_open = self._is_call_open and self._is_end
        is_call = self._has_named_tool or self._num_calls > 0 or not may_be_text
        if self.is_cut and is_call and not self._is_call_open:
            self.drop_rest()
        else:
            self._pass_on_held()

    def is_known(self, name: str) -> bool:
        """Return whether there is a tool with this name."""
        self._has_named_tool = name in self._tool_names
        return self._has_named_tool

    def begin_call(self, name: str) -> None:
        """Begin a call with the held text."""
        self._held_from = self._position
        self._space = ""
        self._parts.append(ToolCallStart(index=self._num_calls, name=name))
        self._num_calls += 1
        self._is_call_open = True
        self._is_after_call = True

    def argue(self, text: str) -> None:
        """Pass on more of the arguments, for the held text."""
        self._held_from = self._position
        self._argue(text)

    def end_call(self) -> None:
        """End the call, with the held text."""
        self._held_from = self._position
        self._is_call_open = False

    def json_call(self, name: str) -> Steps[bool]:
        """Read the arguments of a call of the tool ``name``, a JSON object; return whether it is
        well-formed.
        """
        yield from self.skip_space()
        if (yield from self.peek()) != "{":
            return False
        self.begin_call(name)
        if not (yield from self.value(self.argue)):
            return False
        self.end_call()
        return True

    def calls(self, opening: str, read_call: Callable[[], Steps[bool]]) -> Steps[bool]:
        """Read one or more calls, each after ``opening``; without an opening, read one call.

        Return whether there is a call, and all are well-formed.
        """
        if not opening:
            return (yield from read_call())
        has_call = False
        while (yield from self.after_space(opening)):
            if not (yield from read_call()):
                return False
            has_call = True
        return has_call

    def drop_marks(self, marks: Sequence[str]) -> Steps[None]:
        """Drop each of ``marks`` that follows, in order, with the held text before it."""
        for mark in marks:
            if (yield from self.after_space(mark)):
                self.drop_held()

    def tell(self, part: OutputPart) -> None:
        """Pass on ``part``, for the held text."""
        self._held_from = self._position
        self._parts.append(part)

    def drop_held(self) -> None:
        """Drop the held text: it is neither text nor part of a call."""
        self._held_from = self._position

    def finish(self) -> None:
        """Pass on white space at the end, unless it only follows a call."""
        if self._space and not self._is_after_call:
            self._parts.append(TextPart(text=self._space))
        self._space = ""

    def _pass_on_held(self) -> None:
        held = self._text[self._held_from - self._base : self._position - self._base]
        self._held_from = self._position
        if self._is_call_open:
            self._argue(held)
        else:
            self._say(held)

    def _say(self, text: str) -> None:
        stripped = text.rstrip()
        if stripped:
            self._parts.append(TextPart(text=self._space + stripped))
            self._space = ""
            self._is_after_call = False
        self._space += text[len(stripped) :]

    def _argue(self, text: str) -> None:
        if text:
            self._parts.append(ToolCallArguments(index=self._num_calls - 1, text=text))
