"""The bodies of OpenAI's chat completions and completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from potluck.api.bodies import FIRST_ERROR, STRICT, parse_object, validated
from potluck.api.dialects.openai.other_fields import (
    CALLED_FUNCTION,
    CHAT,
    COMPLETION,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
)
from potluck.api.other_fields import without_others
from potluck.api.tools import FunctionBody


class StreamOptions(BaseModel):
    """``stream_options``."""

    model_config = STRICT

    include_usage: bool | None = None


class SchemaFormat(BaseModel):
    """``json_schema`` of a ``response_format``. ``strict`` False asks for no less here."""

    model_config = STRICT

    name: str
    description: str | None = None
    # Pydantic's own attribute has this name.
    document: Any = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """``response_format``: free text, any JSON object, or what a schema allows."""

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """``structured_outputs``, as vLLM has it: one of these."""

    model_config = STRICT

    document: Any = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Annotated[list[str], FIRST_ERROR] | None = None
    grammar: str | None = None


class CommonBody(BaseModel):
    """What chat completions and completions have in common.

    None is what a field has when it is left out. ``user`` is a label for the log.
    """

    model_config = STRICT

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], FIRST_ERROR] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], FIRST_ERROR] | None = None
    guided_grammar: str | None = None


class ContentPart(BaseModel):
    """A part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: str
    text: str | None = None


class CalledFunction(BaseModel):
    """Which function a tool call calls. ``arguments`` is JSON as a text."""

    model_config = STRICT

    name: str
    arguments: str = "{}"


class ToolCallBody(BaseModel):
    """A tool call that an assistant's message has made. ``index`` is of streams, and ignored."""

    model_config = STRICT

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(BaseModel):
    """A message of a chat. ``reasoning_content`` and ``reasoning`` are one thing."""

    model_config = STRICT

    role: str
    content: str | Annotated[list[ContentPart], FIRST_ERROR] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCallBody], FIRST_ERROR] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolBody(BaseModel):
    """A tool; only functions are supported."""

    model_config = STRICT

    type: Literal["function"]
    function: FunctionBody


class NamedFunction(BaseModel):
    """The function of a ``tool_choice``."""

    model_config = STRICT

    name: str


class NamedTool(BaseModel):
    """A ``tool_choice`` of one tool."""

    model_config = STRICT

    type: Literal["function"]
    function: NamedFunction


class ChatBody(CommonBody):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], FIRST_ERROR]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[ToolBody], FIRST_ERROR] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


class CompletionBody(CommonBody):
    """The body of ``/v1/completions``.

    ``prompt`` is checked where it is read: it may be a long list of numbers.
    """

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


def parse_chat(body: bytes | bytearray) -> ChatBody:
    """Read a chat request. Raises ``ApiError`` that names what is wrong."""
    document = _without_other_options(without_others(parse_object(body), CHAT, ""))
    return validated(ChatBody, plain_messages(document))


def parse_completion(body: bytes | bytearray) -> CompletionBody:
    """Read a completion request. Raises ``ApiError`` that names what is wrong."""
    document = without_others(parse_object(body), COMPLETION, "")
    return validated(CompletionBody, _without_other_options(document))


def plain_messages(document: dict[str, Any]) -> dict[str, Any]:
    """Take the fields that do nothing out of ``messages``, and return ``document``."""
    messages = document.get("messages")
    if isinstance(messages, list):
        document["messages"] = [
            _plain_message(message, f"messages[{index}].") if isinstance(message, dict) else message
            for index, message in enumerate(messages)
        ]
    return document


def _without_other_options(document: dict[str, Any]) -> dict[str, Any]:
    options = document.get("stream_options")
    if isinstance(options, dict):
        document["stream_options"] = without_others(options, STREAM_OPTIONS, "stream_options.")
    return document


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    plain = without_others(message, MESSAGE, where)
    calls = plain.get("tool_calls")
    if isinstance(calls, list):
        plain["tool_calls"] = [
            _plain_call(call, f"{where}tool_calls[{index}].") if isinstance(call, dict) else call
            for index, call in enumerate(calls)
        ]
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = [
            without_others(part, PART, f"{where}content[{index}].")
            if isinstance(part, dict)
            else part
            for index, part in enumerate(content)
        ]
    return plain


def _plain_call(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict):
        return dict(call)
    return {**call, "function": without_others(function, CALLED_FUNCTION, f"{where}function.")}
