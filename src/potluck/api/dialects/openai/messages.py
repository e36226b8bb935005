"""Convert OpenAI's messages to ``ChatMessage``."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.api.dialects.openai.bodies import Message, Prediction
from potluck.api.errors import invalid
from potluck.types.text import ChatMessage, ToolCall

MAX_NAME_CHARACTERS = 64
"""Maximum length of a message's ``name``, as in OpenAI's API."""

ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return the messages of a chat. Raises ``ApiError`` that names the invalid field."""
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def prediction_text(prediction: Prediction) -> str:
    """Return the predicted text."""
    if isinstance(prediction.content, str):
        return prediction.content
    return "".join(part.text for part in prediction.content)


def _message(message: Message, where: str) -> ChatMessage:
    if message.role not in ROLES:
        raise invalid(
            f"{where}.role", f"unknown role {message.role[:20]!r}: use {', '.join(ROLES)}"
        )
    if message.name is not None and len(message.name) > MAX_NAME_CHARACTERS:
        raise invalid(
            f"{where}.name",
            f"{where}.name has {len(message.name)} characters; the limit is {MAX_NAME_CHARACTERS}",
        )
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(
            f"{where}.tool_call_id",
            f"{where}.tool_call_id is required: it identifies the tool call that the "
            "message answers",
            code="missing_required_parameter",
        )
    thoughts = message.reasoning_content or message.reasoning
    if message.role != "assistant" and (message.tool_calls or thoughts):
        raise invalid(
            f"{where}.role",
            f"{where} has the role {message.role}: only assistant messages may have tool "
            "calls and reasoning",
        )
    if message.role != "tool" and message.tool_call_id:
        raise invalid(
            f"{where}.tool_call_id",
            f"{where} has the role {message.role}: only messages with the role tool may "
            "answer a tool call",
        )
    return ChatMessage(
        role=message.role,  # templates without a developer role get a system message
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
        return "".join(part.text for part in message.content)
    if message.role != "assistant":
        raise invalid(
            f"{where}.content",
            f"{where}.content is required",
            code="missing_required_parameter",
        )
    return ""  # OpenAI's own answers have no content if the assistant called a tool or refused
