"""The bodies of Ollama's API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from potluck.api.bodies import StrictObject, parse_object, parser, validated
from potluck.api.dialects.ollama.ignored_fields import CHAT, EMBED, GENERATE, MESSAGE, OPTIONS
from potluck.api.ignored_fields import (
    InertFields,
    drop_inert_fields_of,
    drop_inert_fields_of_items,
)
from potluck.api.tools import FunctionBody

Think = bool | Literal["low", "medium", "high", "max"]


class Options(StrictObject, frozen=True, kw_only=True):
    """``options``. As in Ollama, a ``num_predict`` below 1 means no limit."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    num_predict: int | None = None
    num_ctx: int | None = None
    stop: str | list[str] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


class CommonBody(StrictObject, frozen=True, kw_only=True):
    """Fields that chat and generate requests share. ``format`` is ``json`` or a JSON schema."""

    model: str
    format: Literal["", "json"] | dict[str, Any] | None = None
    options: Options | None = None
    stream: bool | None = None
    think: Think | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CalledFunction(StrictObject, frozen=True, kw_only=True):
    """The function that a tool call calls."""

    name: str
    arguments: dict[str, Any]
    index: int | None = None
    description: str | None = None


class ToolCallBody(StrictObject, frozen=True, kw_only=True):
    """A tool call in an assistant message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(StrictObject, frozen=True, kw_only=True):
    """A message of a chat."""

    role: str
    content: str | None = None
    thinking: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class ToolBody(StrictObject, frozen=True, kw_only=True):
    """A tool; only functions are supported."""

    type: Literal["function"] = "function"
    function: FunctionBody


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/api/chat``."""

    messages: list[Message] = msgspec.field(default_factory=list)
    tools: list[ToolBody] | None = None


class GenerateBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/api/generate``. With ``raw``, the chat template is not applied."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


class EmbedBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/api/embed``. Inputs that are too long are truncated unless ``truncate`` is
    false.
    """

    model: str
    input: str | list[str]
    truncate: bool | None = None
    dimensions: int | None = None
    options: Options | None = None


class OldEmbedBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/api/embeddings``."""

    model: str
    prompt: str | None = None
    options: Options | None = None


class ShowBody(StrictObject, frozen=True, kw_only=True):
    """The body of ``/api/show``; ``name`` is an older name of ``model``."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


def parse_chat(body: bytes | bytearray) -> ChatBody:
    """Parse a chat request. Raises ``ApiError`` that names the invalid field."""
    document = _document(body, CHAT)
    drop_inert_fields_of_items(document, "messages", MESSAGE)
    return validated(ChatBody, document)


def parse_generate(body: bytes | bytearray) -> GenerateBody:
    """Parse a generate request. Raises ``ApiError`` that names the invalid field."""
    return validated(GenerateBody, _document(body, GENERATE))


def parse_embed(body: bytes | bytearray) -> EmbedBody:
    """Parse a request for embeddings. Raises ``ApiError`` that names the invalid field."""
    return validated(EmbedBody, _document(body, EMBED))


def parse_old_embed(body: bytes | bytearray) -> OldEmbedBody:
    """Parse a request for one embedding. Raises ``ApiError`` that names the invalid field."""
    return validated(OldEmbedBody, _document(body, EMBED))


parse_show = parser(ShowBody)


def _document(body: bytes | bytearray, others: InertFields) -> dict[str, Any]:
    document = parse_object(body, others)
    drop_inert_fields_of(document, "options", OPTIONS)
    return document
