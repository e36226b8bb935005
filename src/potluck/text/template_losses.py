"""Find what a chat template leaves out of the prompt, and rewrite the chat so that nothing is lost.

Templates omit parts of a chat without an error: the calls of a message that has text as well, the
second of two calls, a system message after the first turn. Others reject what agents send: two user
messages in a row, a user message after a tool's result. Which parts a template writes is found by
rendering the chat with a unique word in place of each of its texts, since the texts themselves
occur in several places: arguments usually repeat what the user wrote.

If something is missing, or the template rejects the chat, the chat is rewritten by the least
change with which everything is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from potluck.errors import ChatTemplateError, TemplateLimitError
from potluck.text.control_tokens import parse_arguments
from potluck.text.template_rewrites import (
    SYSTEM_ROLES,
    calls_as_text,
    calls_one_by_one,
    calls_without_text,
    later_systems_as_users,
    merged_roles,
    num_leading_systems,
    results_as_text,
    results_with_next_text,
)
from potluck.types.text import ChatMessage

Render = Callable[[Sequence[ChatMessage]], str]
Rewrite = Callable[[Sequence[ChatMessage]], list[ChatMessage]]

_WORD = re.compile(r"zq\d+qz")

_CALLS: tuple[tuple[Rewrite, ...], ...] = (
    (),
    (calls_one_by_one,),
    (calls_without_text,),
    (calls_one_by_one, calls_without_text),
)
_TURNS: tuple[tuple[Rewrite, ...], ...] = (
    (),
    (later_systems_as_users,),
    (later_systems_as_users, merged_roles),
    (later_systems_as_users, merged_roles, results_with_next_text),
)
_AS_TEXT: tuple[Rewrite, ...] = (calls_as_text, results_as_text)

_LONG_CHAT = 1000
"""Number of messages from which only the chat itself and the strongest rewrites are tried, because
rendering it may take seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """A unique word, and the part of the chat that it stands for.

    Calls, results and system messages are required.
    """

    word: str
    part: str
    is_required: bool


def complete(messages: Sequence[ChatMessage], render: Render) -> list[ChatMessage]:
    """Return ``messages``, rewritten as little as possible so that the template writes all of them.

    ``render`` runs the template. Chats in which users and the assistant simply alternate are
    returned as they are. Text beside a call is given up if the template has no place for it. Raises
    ``ChatTemplateError`` if calls, results or system messages are lost in every form, and
    ``TemplateLimitError`` if even the chat itself exceeds the limits; if the template rejects the
    chat in every form, the chat is returned as it is.
    """
    messages = list(messages)
    if _is_simple(messages):
        return messages
    lost_part: str | None = None
    acceptable: list[ChatMessage] | None = None
    for candidate, is_native in _candidates(messages):
        if acceptable is not None and not is_native:
            break
        try:
            losses = _losses(candidate, render)
        except TemplateLimitError:
            if candidate == messages:
                raise
            break  # other forms are as long
        if losses is None:
            continue
        if not losses:
            return candidate
        required = [each.part for each in losses if each.is_required or not is_native]
        if not required:
            acceptable = candidate if acceptable is None else acceptable
        elif lost_part is None:
            lost_part = required[0]
    if acceptable is not None:
        return acceptable
    if lost_part is None:
        return messages
    raise ChatTemplateError(
        f"the chat template leaves out {lost_part}",
        hint="leave it out of the request, or use a model whose template supports it",
    )


def _is_simple(messages: list[ChatMessage]) -> bool:
    """Return whether every template supports the order and the kinds of these messages."""
    if any(each.tool_calls or each.role == "tool" for each in messages):
        return False
    turns = messages[num_leading_systems(messages) :]
    return all(each.role == ("user", "assistant")[at % 2] for at, each in enumerate(turns))


def _candidates(messages: list[ChatMessage]) -> Iterator[tuple[list[ChatMessage], bool]]:
    """Yield different forms of a chat, and whether calls are in the template's own format."""
    seen: list[list[ChatMessage]] = []
    for calls in (*_CALLS, _AS_TEXT):
        for turns in _TURNS:
            is_extreme = calls in (_CALLS[-1], _AS_TEXT) and turns is _TURNS[-1]
            if len(messages) >= _LONG_CHAT and (calls or turns) and not is_extreme:
                continue
            candidate = messages
            for rewrite in (*calls, *turns):
                candidate = rewrite(candidate)
            if candidate not in seen:
                seen.append(candidate)
                yield candidate, calls is not _AS_TEXT


def _losses(messages: Sequence[ChatMessage], render: Render) -> list[_Mark] | None:
    """Return what the template does not write of a chat; None if it rejects the chat."""
    marks: list[_Mark] = []
    marked = [_marked(message, marks) for message in messages]
    try:
        text = render(marked)
    except TemplateLimitError:
        raise
    except ChatTemplateError:
        return None
    found = set(_WORD.findall(text))
    return [mark for mark in marks if mark.word not in found]


def _marked(message: ChatMessage, marks: list[_Mark]) -> ChatMessage:
    """Return the message with a word in place of each text, and append the words to ``marks``."""

    def mark(part: str, *, is_required: bool = True) -> str:
        word = f"zq{len(marks)}qz"  # none contains another one
        marks.append(_Mark(word=word, part=part, is_required=is_required))
        return word

    content = message.content
    if content.strip():
        is_required = message.role in (*SYSTEM_ROLES, "tool")
        content = mark(_part_of(message), is_required=is_required)
    calls = []
    for call in message.tool_calls:
        part = f"a call of {call.name}"
        name = mark(part)
        arguments = parse_arguments(call.arguments)
        marked = (
            mark(part)
            if arguments is None
            else json.dumps(_with_words(arguments, partial(mark, part)))
        )
        calls.append(replace(call, name=name, arguments=marked))
    return replace(message, content=content, tool_calls=tuple(calls))


def _part_of(message: ChatMessage) -> str:
    if message.role == "tool":
        return "the result of a call"
    if message.role in SYSTEM_ROLES:
        return "a system message"
    return "text beside a call" if message.tool_calls else f"a message of the {message.role}"


def _with_words(value: Any, next_word: Callable[[], str]) -> Any:
    """Return ``value`` with a new word in place of each of its strings."""
    if isinstance(value, str):
        return next_word()
    if isinstance(value, dict):
        return {key: _with_words(each, next_word) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_words(each, next_word) for each in value]
    return value
