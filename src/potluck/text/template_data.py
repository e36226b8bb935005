"""What a chat template sees of messages and tools: the dictionaries of ``transformers``.

``transformers`` hands a chat to the template as an OpenAI client writes it, but with the arguments
of tool calls as objects instead of JSON texts. Templates were written against that; some older
ones were written against texts, so arguments are objects that join texts as their JSON. Where
templates ask for what clients do not send, it is made up here, and each case says why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from potluck.text.shield import parse_arguments
from potluck.types.text import ChatMessage, Tool, ToolCall

EFFORT_VARIABLES = ("reasoning_effort", "thinking_effort", "reasoning_strength")
"""Names that templates have for how much a model is to think."""

_ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_EMPTY_SCHEMA: Mapping[str, object] = {"type": "object", "properties": {}}


class _Arguments(dict[str, Any]):
    """The arguments of a call: an object, and JSON wherever a template takes it for text."""

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
    """Return ``messages`` as the template ``source`` sees them."""
    short_ids = "length != 9" in source or "length 9" in source
    named = () if "tool_call_id" in source else messages
    names = {call.call_id: call.name for message in named for call in message.tool_calls}
    return [
        dict(_fields_of(message, source=source, names=names, short_ids=short_ids))
        for message in messages
    ]


def tool_data(tool: Tool) -> dict[str, object]:
    """Return a tool as templates see it, and as OpenAI's API describes it."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters or _EMPTY_SCHEMA),
        },
    }


def _fields_of(
    message: ChatMessage, *, source: str, names: Mapping[str, str], short_ids: bool
) -> Iterator[tuple[str, object]]:
    """Fields that a message does not have are left out: templates ask whether they are defined."""
    # OpenAI's newer name for the system's role. Templates that do not know it would drop the
    # message or refuse it.
    is_renamed = message.role == "developer" and "developer" not in source
    yield "role", "system" if is_renamed else message.role
    yield "content", message.content
    name = message.name
    if message.role == "tool" and name is None and message.tool_call_id is not None:
        # Some templates name the tool that answers and cannot find it by the call's id.
        name = names.get(message.tool_call_id)
    if name is not None:
        yield "name", name
    if message.reasoning is not None:
        # Templates know it by either name, and transformers gives both.
        yield "thinking", message.reasoning
        yield "reasoning_content", message.reasoning
    if message.tool_calls:
        yield "tool_calls", [_call_data(call, short_ids=short_ids) for call in message.tool_calls]
    if message.tool_call_id is not None:
        yield "tool_call_id", _id_of(message.tool_call_id, is_short=short_ids)


def _call_data(call: ToolCall, *, short_ids: bool) -> dict[str, object]:
    arguments = parse_arguments(call.arguments)
    return {
        "id": _id_of(call.call_id, is_short=short_ids),
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


def _id_of(call_id: str, *, is_short: bool) -> str:
    """Mistral's templates refuse ids that have not nine letters and digits."""
    if not is_short or (len(call_id) == 9 and call_id.isalnum()):
        return call_id
    number = int.from_bytes(hashlib.sha256(call_id.encode("utf-8", "replace")).digest()[:8])
    letters = []
    for _ in range(9):
        number, letter = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[letter])
    return "".join(letters)
