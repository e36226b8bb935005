"""The bodies of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any, Literal

from potluck.api.bodies import OneOf, StrictObject, check_type, parse_object, validated, variants
from potluck.api.dialects.anthropic.ignored_fields import BLOCK, BODY, TOOL
from potluck.api.ignored_fields import (
    change_items,
    drop_inert_fields_of_items,
)


class Block(OneOf):
    """A block of a message's content."""

    __slots__ = ()


class TextBlock(StrictObject, Block, frozen=True, kw_only=True):
    """A part of a text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(StrictObject, Block, frozen=True, kw_only=True):
    """A tool call of the assistant."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(StrictObject, Block, frozen=True, kw_only=True):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class ThinkingBlock(StrictObject, Block, frozen=True, kw_only=True):
    """The assistant's reasoning. ``signature`` is the one from the earlier answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class Message(StrictObject, frozen=True, kw_only=True):
    """A message of a chat."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class ToolBody(StrictObject, frozen=True, kw_only=True):
    """A tool that the client runs. ``input_schema`` is a JSON schema."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ToolChoice(StrictObject, frozen=True, kw_only=True):
    """The ``tool_choice``: how to use tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(StrictObject, frozen=True, kw_only=True):
    """Whether to think before the answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonFormat(StrictObject, frozen=True, kw_only=True):
    """An answer that is JSON."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(StrictObject, frozen=True, kw_only=True):
    """``output_config``."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None


class Metadata(StrictObject, frozen=True, kw_only=True):
    """``metadata``: a label for the log."""

    user_id: str | None = None


class PromptBody(StrictObject, frozen=True, kw_only=True):
    """The part of a body that makes up the prompt: the body of ``/v1/messages/count_tokens``."""

    model: str
    messages: list[Message]
    system: str | list[TextBlock] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None


class MessagesBody(PromptBody, frozen=True, kw_only=True):
    """The body of ``/v1/messages``. If the last message is the assistant's, it is continued."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Metadata | None = None


def parse_messages(body: bytes | bytearray) -> MessagesBody:
    """Parse a request for a message. Raises ``ApiError`` that names the invalid field."""
    return validated(MessagesBody, _document(body))


def parse_prompt(body: bytes | bytearray) -> PromptBody:
    """Parse a request to count tokens. Raises ``ApiError`` that names the invalid field."""
    return validated(PromptBody, _document(body))


def _document(body: bytes | bytearray) -> dict[str, Any]:
    document = parse_object(body, BODY)
    drop_inert_fields_of_items(document, "system", BLOCK)
    drop_inert_fields_of_items(document, "tools", TOOL)
    change_items(document, "messages", _plain_message)
    return document


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    drop_inert_fields_of_items(message, "content", BLOCK, where)
    change_items(message, "content", _checked_block, where)
    change_items(message, "content", _plain_block, where)
    return message


def _checked_block(block: dict[str, Any], where: str) -> dict[str, Any]:
    check_type(block, where, variants(Block))
    return block


def _plain_block(block: dict[str, Any], where: str) -> dict[str, Any]:
    drop_inert_fields_of_items(block, "content", BLOCK, where)
    return block
