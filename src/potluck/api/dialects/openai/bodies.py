"""The bodies of OpenAI's chat completions and completions."""

from __future__ import annotations

from typing import Any, Literal

from potluck.api.bodies import OneOf, StrictObject, check_type, parse_object, validated, variants
from potluck.api.dialects.openai.ignored_fields import (
    CALLED_FUNCTION,
    CHAT,
    COMPLETION,
    MESSAGE,
    PART,
    REASONING,
    STREAM_OPTIONS,
)
from potluck.api.ignored_fields import change_items, drop_inert_fields, drop_inert_fields_of
from potluck.api.tools import FunctionBody


class StreamOptions(StrictObject, frozen=True, kw_only=True):
    """``stream_options``."""

    include_usage: bool | None = None


class SchemaFormat(StrictObject, frozen=True, kw_only=True):
    """The ``json_schema`` of a ``response_format``. ``strict`` has no effect."""

    name: str
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(StrictObject, frozen=True, kw_only=True):
    """``response_format``: free text, any JSON object, or an object that matches a schema.

    ``json_object`` may have the schema as its own ``schema``, as in llama.cpp.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaFormat | None = None
    schema: Any = None


class StructuredOutputs(StrictObject, frozen=True, kw_only=True):
    """``structured_outputs``, as in vLLM: exactly one of these."""

    json: Any = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class CommonBody(StrictObject, frozen=True, kw_only=True):
    """Fields that chat completions and completions share.

    A field that is omitted is None. ``user`` is a label for the log. ``repeat_penalty`` is the name
    of ``repetition_penalty`` in llama.cpp and Ollama.
    """

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class ContentPart(StrictObject, frozen=True, kw_only=True):
    """A part of a message's content; only text is supported."""

    type: Literal["text"]
    text: str


class CalledFunction(StrictObject, frozen=True, kw_only=True):
    """The function that a tool call calls. ``arguments`` is a JSON string."""

    name: str
    arguments: str = "{}"


class ToolCallBody(StrictObject, frozen=True, kw_only=True):
    """A tool call in an assistant message. ``index`` occurs in streams and is ignored."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(StrictObject, frozen=True, kw_only=True):
    """A message of a chat. ``reasoning_content`` and ``reasoning`` are synonyms."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCallBody] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolBody(StrictObject, frozen=True, kw_only=True):
    """A tool; only functions are supported."""

    type: Literal["function"]
    function: FunctionBody


class NamedFunction(StrictObject, frozen=True, kw_only=True):
    """The function of a ``tool_choice``."""

    name: str


class ToolChoice(OneOf):
    """A ``tool_choice`` that is an object."""

    __slots__ = ()


class NamedTool(StrictObject, ToolChoice, frozen=True, kw_only=True):
    """A ``tool_choice`` that names one tool."""

    type: Literal["function"]
    function: NamedFunction


class AllowedFunctions(StrictObject, frozen=True, kw_only=True):
    """The ``allowed_tools`` of a ``tool_choice``."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(StrictObject, ToolChoice, frozen=True, kw_only=True):
    """A ``tool_choice`` of some tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


class Prediction(StrictObject, frozen=True, kw_only=True):
    """A predicted answer, which speeds up generation and does not change the answer."""

    type: Literal["content"]
    content: str | list[ContentPart]


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class Thinking(StrictObject, frozen=True, kw_only=True):
    """``thinking``, as in the APIs of DeepSeek and GLM."""

    type: Literal["enabled", "disabled"]


class Reasoning(StrictObject, frozen=True, kw_only=True):
    """``reasoning``, as in OpenRouter's API."""

    effort: ReasoningEffort | None = None
    enabled: bool | None = None


class ChatBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/v1/chat/completions``.

    Reasoning is switched by ``enable_thinking``, ``thinking`` or ``reasoning``; its amount is
    ``reasoning_effort``, or that of ``reasoning``.
    """

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    reasoning: Reasoning | None = None
    enable_thinking: bool | None = None
    thinking: bool | Thinking | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[ToolBody] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None


class CompletionBody(CommonBody, frozen=True, kw_only=True):
    """The body of ``/v1/completions``.

    ``prompt`` is validated when it is parsed, because it can be a long list of numbers.
    """

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


def parse_chat(body: bytes | bytearray) -> ChatBody:
    """Parse a chat request. Raises ``ApiError`` that names the invalid field."""
    document = parse_object(body, CHAT)
    drop_inert_fields_of(document, "stream_options", STREAM_OPTIONS)
    drop_inert_fields_of(document, "reasoning", REASONING)
    prediction = document.get("prediction")
    if isinstance(prediction, dict):
        change_items(prediction, "content", _plain_part, "prediction")
    choice = document.get("tool_choice")
    if isinstance(choice, dict):
        check_type(choice, "tool_choice", variants(ToolChoice))
    return validated(ChatBody, plain_chat(document))


def parse_completion(body: bytes | bytearray) -> CompletionBody:
    """Parse a completion request. Raises ``ApiError`` that names the invalid field."""
    document = parse_object(body, COMPLETION)
    drop_inert_fields_of(document, "stream_options", STREAM_OPTIONS)
    return validated(CompletionBody, document)


def plain_chat(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the ignored fields from ``messages``, and return ``document``.

    Raise ``ApiError`` that names the type of a tool that is not a function.
    """
    change_items(document, "tools", _function_tool)
    change_items(document, "messages", _plain_message)
    return document


def _function_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    check_type(tool, where, ("function",))
    return tool


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    plain = drop_inert_fields(message, MESSAGE, where)
    change_items(plain, "tool_calls", _plain_call, where)
    change_items(plain, "content", _plain_part, where)
    return plain


def _plain_part(part: dict[str, Any], where: str) -> dict[str, Any]:
    check_type(part, where, ("text",))
    return drop_inert_fields(part, PART, where)


def _plain_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    drop_inert_fields_of(call, "function", CALLED_FUNCTION, where)
    return call
