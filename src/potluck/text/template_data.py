"""Convert messages and tools to the dictionaries that chat templates expect, as ``transformers``
does.

``transformers`` passes a chat to the template as an OpenAI client writes it, but with the arguments
of tool calls as objects instead of JSON strings. Most templates expect that; some older ones expect
strings, so arguments are objects that concatenate with strings as JSON. Where templates require
values that clients do not send, they are generated here; comments give the reason for each case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from potluck.text.control_tokens import parse_arguments
from potluck.types.text import ChatMessage, Tool, ToolCall

EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""Names of the template variable for reasoning effort."""

_DEVELOPER = re.compile(r"""['"]developer['"]""")
_NO_CONTENT = re.compile(r"""\bcontent(?:['"]\])? is none\b""")
"""A test for messages with calls and no text, for which OpenAI's clients send null."""
_PARTS = re.compile(r"""\bin message(?:\.content\b|\[['"]content['"]\])""")
_TEXT_OR_PARTS = re.compile(r"\bis (?:not )?(?:string|iterable|mapping|sequence)\b")
_KIMI_CALL = "<|tool_call_argument_begin|>"
_KIMI_ID = re.compile(r"functions\.\S+:\d+")
_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EMPTY_SCHEMA: Mapping[str, object] = {"type": "object", "properties": {}}


class _Arguments(dict[str, Any]):
    """The arguments of a call: an object that becomes JSON where a template uses it as a string."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, other: object) -> str:
        return self._text + other if isinstance(other, str) else NotImplemented

    def __radd__(self, other: object) -> str:
        return other + self._text if isinstance(other, str) else NotImplemented


def messages_data(messages: Sequence[ChatMessage], source: str) -> list[dict[str, object]]:
    """Return ``messages`` in the form that the template ``source`` expects."""
    form = _MessageForm(source)
    return [dict(form.fields_of(message)) for message in messages]


def tool_data(tool: Tool) -> dict[str, object]:
    """Return a tool in the form of OpenAI's API, which templates expect."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters or _EMPTY_SCHEMA),
        },
    }


class _MessageForm:
    """The form in which a template reads messages, which are converted in order.

    Templates of models with images may support lists of parts only, and write nothing for a text.
    Servers generate the ids of calls in their own format, and some models were trained on ids in
    another. Clients may reuse an id in a later turn: a result answers the last call with its id.
    """

    def __init__(self, source: str) -> None:
        self._knows_developer = _DEVELOPER.search(source) is not None
        self._is_parts = bool(_PARTS.search(source)) and not _TEXT_OR_PARTS.search(source)
        self._tests_for_none = _NO_CONTENT.search(source) is not None
        self._names_results = "tool_call_id" not in source
        self._has_short_ids = "length != 9" in source or "length 9" in source
        self._has_numbered_ids = _KIMI_CALL in source
        # maps an id to its new id and the name of the call
        self._last: dict[str | None, tuple[str, str]] = {}
        self._num_calls = 0

    def fields_of(self, message: ChatMessage) -> Iterator[tuple[str, object]]:
        """Yield the fields of a message, without absent ones: templates test what is defined."""
        # OpenAI's newer name for the system role. Templates that do not support it would drop the
        # message or reject it.
        is_renamed = message.role == "developer" and not self._knows_developer
        yield "role", "system" if is_renamed else message.role
        yield "content", self._content_of(message)
        calls = [self._call_data(call) for call in message.tool_calls]
        result_id = message.tool_call_id
        name = message.name
        if message.role == "tool" and name is None and self._names_results:
            # for templates that cannot look it up by id
            name = self._last[result_id][1] if result_id in self._last else None
        if name is not None:
            yield "name", name
        if message.reasoning is not None:
            # Templates know it by either name, and transformers sets both.
            yield "thinking", message.reasoning
            yield "reasoning_content", message.reasoning
        if calls:
            yield "tool_calls", calls
        if result_id in self._last:
            yield "tool_call_id", self._last[result_id][0]
        elif result_id is not None:
            yield "tool_call_id", _short_id(result_id) if self._has_short_ids else result_id

    def _content_of(self, message: ChatMessage) -> object:
        if self._tests_for_none and message.tool_calls and not message.content:
            return None
        if self._is_parts:
            return [{"type": "text", "text": message.content}]
        return message.content

    def _call_data(self, call: ToolCall) -> dict[str, object]:
        call_id = call.call_id
        if self._has_numbered_ids and not _KIMI_ID.fullmatch(call_id):
            # The id is all that the template writes, so it has to contain the name.
            call_id = f"functions.{call.name}:{self._num_calls}"
        elif self._has_short_ids:
            call_id = _short_id(call_id)
        self._num_calls += 1
        self._last[call.call_id] = call_id, call.name
        arguments = parse_arguments(call.arguments)
        return {
            "id": call_id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": (
                    call.arguments
                    if arguments is None
                    else _Arguments(arguments, call.arguments.strip() or "{}")
                ),
            },
        }


def _short_id(call_id: str) -> str:
    """Return an id for Mistral's templates, which require nine letters and digits."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "replace")).digest()[:8])
    letters = []
    for _ in range(9):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)
