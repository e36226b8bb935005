"""From OpenAI's messages to those of a chat."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.api.dialects.openai.bodies import ContentPart, Message
from potluck.api.errors import invalid
from potluck.types.text import ChatMessage, ToolCall

MAX_NAME_CHARACTERS = 64
"""Of a message's ``name``, as in OpenAI's API."""

ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return the messages of a chat. Raises ``ApiError`` that names what is wrong."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, where: str) -> ChatMessage:
    if message.role not in ROLES:
        raise invalid(
            f"{where}.role", f"there is no role {message.role[:20]!r}: use {', '.join(ROLES)}"
        )
    if message.name is not None and len(message.name) > MAX_NAME_CHARACTERS:
        raise invalid(
            f"{where}.name",
            f"{where}.name has {len(message.name)} characters, and may have {MAX_NAME_CHARACTERS}",
        )
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(
            f"{where}.tool_call_id",
            f"{where}.tool_call_id is missing: it says which call the message answers",
            code="missing_required_parameter",
        )
    thoughts = message.reasoning_content or message.reasoning
    if message.role != "assistant" and (message.tool_calls or thoughts):
        raise invalid(
            f"{where}.role",
            f"{where} has the role {message.role}: only an assistant's message has tool calls and"
            " reasoning",
        )
    if message.role != "tool" and message.tool_call_id:
        raise invalid(
            f"{where}.tool_call_id",
            f"{where} has the role {message.role}: only the role tool answers a call of a tool",
        )
    return ChatMessage(
        role=message.role,  # templates that do not know developers get a system's message
        content=_content(message, where),
        name=message.name,
        tool_calls=tuple(
            ToolCall(call_id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in message.tool_calls or ()
        ),
        tool_call_id=message.tool_call_id if message.role == "tool" else None,
        reasoning=thoughts,
    )


def _content(message: Message, where: str) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        return "".join(
            _text_of(part, f"{where}.content[{number}]")
            for number, part in enumerate(message.content)
        )
    if message.role != "assistant":
        raise invalid(
            f"{where}.content",
            f"{where}.content is missing",
            code="missing_required_parameter",
        )
    return ""  # OpenAI's own answers have none where the assistant called a tool or refused


def _text_of(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise invalid(
            f"{where}.type",
            f"{where} is of the type {part.type[:20]!r}: only text is supported",
            code="unsupported_value",
        )
    if part.text is None:
        raise invalid(f"{where}.text", f"{where}.text is missing")
    for name in part.model_extra or {}:
        raise invalid(
            f"{where}.{name[:20]}", f"a part of text has no {name[:20]!r}", code="unknown_parameter"
        )
    return part.text
