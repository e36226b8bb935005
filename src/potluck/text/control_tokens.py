"""Prevent texts of users, tools and models from becoming the template's control tokens.

In the rendered text, control tokens that the *template* wrote must become control tokens, while the
same strings inside a message, a tool's description or a tool's result stay text. To distinguish
them, one character of every control token's text that occurs in such a string is replaced, before
rendering, by a rare ideograph that occurs nowhere else. Afterwards the characters are restored, and
the tokenizer gets their positions. Each replacement is a single character, so templates that trim
or cut strings work as they do otherwise; and ideographs have no case, and are written unchanged in
JSON and in Python's representation of lists.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from potluck.errors import ChatTemplateError, ParameterError
from potluck.text.added_tokens import (
    SEARCHED_CHARACTERS,
    alternatives,
    replace_at,
    search_in_parts,
)
from potluck.types.text import ChatMessage, Tool, ToolCall, levels_of

_STAND_IN_CODES = range(0x20000, 0x2A6D7)
"""CJK Unified Ideographs Extension B, as in Unicode 3.1."""
_STAND_INS = re.compile("[\U00020000-\U0002a6d6]")
_WORD = re.compile(r"[\w$.\-]{1,64}")
_SEPARATOR = "\uffff"
"""A Unicode noncharacter."""
_MAX_DEPTH = 64
"""Maximum nesting of schemas and values; JSON schemas in use have about ten levels."""
_MAX_PARSED_DEPTH = 256
"""Maximum nesting of arguments that are parsed at all. They are read recursively, with up to two of
Python's thousand frames per level."""


class _Controls:
    """The texts of a model's control tokens, indexed for searching. Immutable."""

    def __init__(self, control_texts: Iterable[str]) -> None:
        texts = [text for text in control_texts if text]
        self.pattern = alternatives(texts)
        self.longest = max(map(len, texts), default=0)
        self._sorted = sorted(texts)
        self._sorted_reversed = sorted(text[::-1] for text in texts)
        self.first_characters = {text[0] for text in texts}
        self.last_characters = {text[-1] for text in texts}
        self.all_texts = _SEPARATOR.join(texts)

    def continues(self, beginning: str) -> bool:
        """Return whether a longer text begins with ``beginning``."""
        return _continues(self._sorted, beginning)

    def precedes(self, ending: str) -> bool:
        """Return whether a longer text ends with ``ending``."""
        return _continues(self._sorted_reversed, ending[::-1])


def _continues(sorted_texts: Sequence[str], beginning: str) -> bool:
    index = bisect_right(sorted_texts, beginning)
    return index < len(sorted_texts) and sorted_texts[index].startswith(beginning)


@lru_cache(maxsize=8)  # Gemma has 6,500, and a gateway has only a few models
def _controls(control_texts: tuple[str, ...]) -> _Controls:
    return _Controls(control_texts)


class ControlTokenEscaper:
    """Replaces characters so that no control token's text remains, and restores them.

    Templates compare words of schemas (``type``, ``object``) with their own, and many control
    tokens contain such a word (``<|object_ref_start|>``). So words in tools, and in arguments and
    variables, are left alone unless ``is_strict`` is set or they are a whole control token's text;
    ``has_left_words`` tells whether there were any.
    """

    def __init__(
        self, *, control_texts: Iterable[str], used: Iterable[str], is_strict: bool = False
    ) -> None:
        """Initialize. Replacements do not occur in ``used``, which is read when needed."""
        self._control = _controls(tuple(control_texts))
        self._free = _unused_characters(used)
        self._stand_in: dict[str, str] = {}
        self._words: dict[str, str] = {}  # the same schemas occur in many requests
        self._is_strict = is_strict
        self.has_left_words = False

    def escape(self, content: str) -> str:
        """Return ``content`` with one character replaced wherever a control token could be read.

        That is where its whole text occurs, and where the content ends with its beginning, begins
        with its end or is part of it, so that adjacent text of the template could complete it.
        """
        touched = sorted({*self._whole(content), *self._at_borders(content)})
        return replace_at(content, ((i, self._stand_in_for(content[i])) for i in touched))

    def escape_message(self, message: ChatMessage) -> ChatMessage:
        """Return ``message`` with all its texts covered, including tool calls and reasoning."""
        return replace(
            message,
            content=self.escape(message.content),
            name=message.name and self.escape(message.name),
            tool_calls=tuple(map(self._escape_call, message.tool_calls)),
            tool_call_id=message.tool_call_id and self._escape_word(message.tool_call_id),
            reasoning=message.reasoning and self.escape(message.reasoning),
        )

    def escape_tool(self, tool: Tool) -> Tool:
        """Return ``tool`` with its name, its description and its schema covered."""
        return replace(
            tool,
            name=self._escape_word(tool.name),
            description=self.escape(tool.description),
            parameters=self.escape_object(tool.parameters, parameter="tools"),
        )

    def escape_object(
        self, value: Mapping[str, object], *, parameter: str, levels_left: int = _MAX_DEPTH
    ) -> dict[str, object]:
        """Return an object of JSON types with all strings in it covered, including keys.

        Raises ``ParameterError``, which names ``parameter``, for other types and for values that
        are nested too deeply.
        """
        return {
            self._escape_word(str(key)): self._escape_nested(each, parameter, levels_left - 1)
            for key, each in value.items()
        }

    def unescape(self, rendered: str) -> tuple[str, tuple[int, ...]]:
        """Return the text with the original characters, and the indices of the replacements."""
        original = {stand_in: character for character, stand_in in self._stand_in.items()}
        if not original:
            return rendered, ()
        stand_ins = re.compile(f"[{''.join(original)}]")
        literal: list[int] = []
        position = 0
        while match := search_in_parts(stand_ins, rendered, position, 1):
            position = match.end()
            literal.append(match.start())
        text = replace_at(rendered, ((index, original[rendered[index]]) for index in literal))
        return text, tuple(literal)

    def free_character(self) -> str:
        """Return a character that occurs nowhere else."""
        return next(self._free)

    def _escape_call(self, call: ToolCall) -> ToolCall:
        arguments = parse_arguments(call.arguments)
        if arguments is None:
            covered = self.escape(call.arguments)
        else:
            value = self.escape_object(arguments, parameter="messages")
            # As the model wrote it, unless something has to be covered.
            is_same = value == arguments
            covered = call.arguments if is_same else json.dumps(value, ensure_ascii=False)
        return ToolCall(
            call_id=self._escape_word(call.call_id),
            name=self._escape_word(call.name),
            arguments=covered,
        )

    def _escape_word(self, text: str) -> str:
        if text not in self._words:
            self._words[text] = self._escaped_word(text)
        return self._words[text]

    def _escaped_word(self, text: str) -> str:
        if self._is_strict or not _WORD.fullmatch(text):
            return self.escape(text)
        if next(self._at_borders(text), None) is not None:
            self.has_left_words = True
        return replace_at(text, ((i, self._stand_in_for(text[i])) for i in self._whole(text)))

    def _escape_nested(self, value: object, parameter: str, levels_left: int) -> object:
        if isinstance(value, str):
            return self._escape_word(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if not levels_left:
            raise ParameterError(
                parameter,
                f"values are nested more than {_MAX_DEPTH} levels deep",
                hint="use fewer levels of nesting",
            )
        if isinstance(value, Mapping):
            return self.escape_object(value, parameter=parameter, levels_left=levels_left)
        if isinstance(value, list | tuple):
            return [self._escape_nested(each, parameter, levels_left - 1) for each in value]
        raise ParameterError(
            parameter,
            f"a value has the unsupported type {type(value).__name__}",
            hint="use strings, numbers, booleans, None, lists and dictionaries",
        )

    def _whole(self, content: str) -> Iterator[int]:
        position = 0
        while match := search_in_parts(
            self._control.pattern, content, position, self._control.longest
        ):
            yield match.start()
            position = match.start() + 1

    def _at_borders(self, content: str) -> Iterator[int]:
        num_searched = min(self._control.longest - 1, len(content))
        for index in range(len(content) - num_searched, len(content)):
            is_possible = content[index] in self._control.first_characters
            if is_possible and self._control.continues(content[index:]):
                yield index
        for length in range(1, num_searched + 1):
            is_possible = content[length - 1] in self._control.last_characters
            if is_possible and self._control.precedes(content[:length]):
                yield 0
        if content and len(content) <= self._control.longest and content in self._control.all_texts:
            yield 0

    def _stand_in_for(self, character: str) -> str:
        if character not in self._stand_in:
            self._stand_in[character] = next(self._free)
        return self._stand_in[character]


def parse_arguments(text: str) -> dict[str, object] | None:
    """Return the object in a call's arguments, or None if they are not an object.

    Arguments that are nested extremely deeply count as text, too.
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and not _is_too_deep(value) else None


def _is_too_deep(value: dict[str, object]) -> bool:
    return any(True for _ in islice(levels_of(value), _MAX_PARSED_DEPTH, None))


def texts_of(value: object) -> Iterator[str]:
    """Yield all strings in a value of JSON types."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            pending += each.keys()
            pending += each.values()
        elif isinstance(each, list | tuple):
            pending += each


def texts_of_message(message: ChatMessage) -> Iterator[str]:
    """Yield all texts of a message that a template may write."""
    yield message.content
    yield from (text for text in (message.name, message.tool_call_id, message.reasoning) if text)
    for call in message.tool_calls:
        yield from (call.call_id, call.name, call.arguments)
        yield from texts_of(parse_arguments(call.arguments))


def _unused_characters(texts: Iterable[str]) -> Iterator[str]:
    """Yield rare ideographs that occur in none of ``texts``, which are read only on first use."""
    used = set()
    for text in texts:
        for start in range(0, len(text), SEARCHED_CHARACTERS):
            used.update(_STAND_INS.findall(text, start, start + SEARCHED_CHARACTERS))
    for code in _STAND_IN_CODES:
        if chr(code) not in used:
            yield chr(code)
    raise ChatTemplateError(
        "the messages use every character that could escape control tokens in them",
        hint="shorten the messages",
    )
