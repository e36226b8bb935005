"""The bodies of Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from potluck.api.bodies import OneOf, StrictObject, check_type, parse_object, validated, variants
from potluck.api.dialects.anthropic.ignored_fields import BLOCK, BODY, TOOL
from potluck.api.ignored_fields import InertFields, drop_inert_fields


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
    document = drop_inert_fields(parse_object(body), BODY, "")
    _strip(document, "system", BLOCK, "")
    _strip(document, "tools", TOOL, "")
    messages = document.get("messages")
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            where = f"messages[{index}]."
            _strip(message, "content", BLOCK, where)
            _check_types(message.get("content"), where)
            for number, block in enumerate(_objects(message.get("content"))):
                _strip(block, "content", BLOCK, f"{where}content[{number}].")
    return document


def _strip(owner: dict[str, Any], name: str, others: InertFields, where: str) -> None:
    """Remove the ignored fields from the objects of a list."""
    items = owner.get(name)
    if isinstance(items, list):
        owner[name] = [
            drop_inert_fields(item, others, f"{where}{name}[{index}].")
            if isinstance(item, dict)
            else item
            for index, item in enumerate(items)
        ]


def _check_types(content: object, where: str) -> None:
    for number, block in enumerate(_objects(content)):
        check_type(block, f"{where}content[{number}]", variants(Block))


def _objects(value: object) -> Sequence[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else ()
