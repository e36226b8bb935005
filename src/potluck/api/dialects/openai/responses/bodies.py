"""The body of ``/v1/responses``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from potluck.api.bodies import FIRST_ERROR, STRICT, parse_object, validated
from potluck.api.dialects.openai.other_fields import PROMPT_CACHE, SERVICE, STREAM_OPTIONS
from potluck.api.errors import invalid
from potluck.api.other_fields import (
    LABEL,
    LABELS,
    OBJECT,
    IgnoredField,
    InertFields,
    drop_inert_fields,
)

_LENIENT = ConfigDict(extra="ignore", strict=True, frozen=True)
"""Ignored fields of items, which clients send back as received, with ids, states and annotations.
"""


class TextPart(BaseModel):
    """A text part of a message, of reasoning, or of a tool's output."""

    model_config = _LENIENT

    type: str
    text: str | None = None
    refusal: str | None = None


Content = str | Annotated[list[TextPart], FIRST_ERROR]


class MessageItem(BaseModel):
    """A message of the chat."""

    model_config = _LENIENT

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCallItem(BaseModel):
    """A tool call of the assistant."""

    model_config = _LENIENT

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(BaseModel):
    """The result of a tool call."""

    model_config = _LENIENT

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(BaseModel):
    """The assistant's reasoning."""

    model_config = _LENIENT

    type: Literal["reasoning"]
    summary: Annotated[list[TextPart], FIRST_ERROR] = []
    content: Annotated[list[TextPart], FIRST_ERROR] | None = None


Item = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem,
    Field(discriminator="type"),
]

_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")


class ToolBody(BaseModel):
    """A function that the model may call. ``parameters`` is a JSON schema."""

    model_config = STRICT

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedTool(BaseModel):
    """A ``tool_choice`` of one tool."""

    model_config = STRICT

    type: Literal["function"]
    name: str


class TextFormat(BaseModel):
    """The required format of the answer's text. ``name``, ``description`` and ``strict`` have no
    effect.
    """

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(BaseModel):
    """``text``. ``verbosity`` is for models that were trained with such a parameter."""

    model_config = STRICT

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(BaseModel):
    """``reasoning``. Potluck returns the reasoning itself and creates no summaries."""

    model_config = STRICT

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class StreamOptions(BaseModel):
    """``stream_options``, which do not change an answer."""

    model_config = STRICT


class ResponseBody(BaseModel):
    """The body of ``/v1/responses``."""

    model_config = STRICT

    model: str
    input: str | Annotated[list[Item], FIRST_ERROR]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    tools: Annotated[list[ToolBody], FIRST_ERROR] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    reasoning: ReasoningOptions | None = None
    text: TextOptions | None = None
    include: Annotated[list[str], FIRST_ERROR] | None = None
    metadata: dict[str, str] | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    stream: bool | None = None
    user: str | None = None


_OTHERS = InertFields(
    harmless={
        **SERVICE,
        **PROMPT_CACHE,
        # The limit of calls to built-in tools; Potluck has none.
        "max_tool_calls": IgnoredField(
            expected="an integer", holds=lambda value: type(value) is int
        ),
        "client_metadata": OBJECT,
        "metadata": replace(LABELS, is_kept=True),  # repeated in the response
        "user": replace(LABEL, is_kept=True),  # written to the agent's log
    },
    neutral={
        "access_programs": (None, []),
        "background": (None, False),
        "background_options": (None,),
        "conversation": (None,),
        "context_management": (None, []),
        "image": (None,),
        "moderation": (None,),
        "prompt": (None,),
        "truncation": (None, "disabled"),
    },
)

_INCLUDED = ("message.output_text.logprobs", "reasoning.encrypted_content")
"""Supported values of ``include``. Reasoning is always returned in plain text."""


def parse_response(body: bytes | bytearray) -> ResponseBody:
    """Parse a request for a response. Raises ``ApiError`` that names the invalid field."""
    document = drop_inert_fields(parse_object(body), _OTHERS, "")
    options = document.get("stream_options")
    if isinstance(options, dict):
        document["stream_options"] = drop_inert_fields(options, STREAM_OPTIONS, "stream_options.")
    items = document.get("input")
    for index, item in enumerate(items if isinstance(items, list) else ()):
        if isinstance(item, dict):
            _name_type(item, f"input[{index}]")
    read = validated(ResponseBody, document)
    for each in read.include or ():
        if each not in _INCLUDED:
            raise invalid(
                "include",
                f"include has the unsupported value {each[:60]!r}; supported: "
                f"{', '.join(_INCLUDED)}",
                code="unsupported_value",
            )
    return read


def _name_type(item: dict[str, Any], where: str) -> None:
    """Add the type to a message that omits it."""
    kind = item.setdefault("type", "message")
    if isinstance(kind, str) and kind not in _ITEM_TYPES:
        raise invalid(
            f"{where}.type",
            f"{where} has the unsupported type {kind[:40]!r}; supported: {', '.join(_ITEM_TYPES)}",
            code="unsupported_value",
        )
