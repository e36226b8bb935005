"""Convert Ollama's request bodies to ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict

import msgspec

from potluck.api.dialects.ollama.bodies import (
    ChatBody,
    CommonBody,
    GenerateBody,
    Message,
    Options,
)
from potluck.api.errors import invalid
from potluck.api.grammars import schema_grammar
from potluck.api.requests import ChatRequest, CompletionRequest, given, num_top_logprobs
from potluck.api.tools import tool_use
from potluck.grammars import build
from potluck.text.chat import chat_ending
from potluck.types.gateway import ServedModel
from potluck.types.text import ChatMessage, ToolCall

_ROLES = ("system", "user", "assistant", "tool")

_NO_OPTIONS = Options()

PARAMETER_NAMES = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    **{
        name: f"options.{name}"
        for name in (
            "frequency_penalty",
            "min_p",
            "presence_penalty",
            "seed",
            "stop",
            "temperature",
            "top_k",
            "top_p",
        )
    },
}
"""Ollama's names of fields of ``GenerationRequest``, where they differ."""


def chat_request(body: ChatBody, model: ServedModel) -> ChatRequest:
    """Convert a chat request. Raises ``PotluckError``."""
    messages = _messages(body.messages)
    tools = [tool.function.tool() for tool in body.tools or ()]
    return ChatRequest(
        **_common(body, model),
        messages=messages,
        ending=chat_ending(messages),
        tool_use=tool_use(tools),
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        thinks=None if body.think is None else bool(body.think),
    )


def generate_request(body: GenerateBody, model: ServedModel) -> ChatRequest | CompletionRequest:
    """Convert a generate request: an answer to a prompt, or the continuation of a raw prompt.

    With ``suffix``, the model fills the gap between the two.

    Raises ``PotluckError``.
    """
    prompt = body.prompt or ""
    if body.raw or body.suffix:
        if body.system:
            raise invalid(
                "system", "system can only be used with the chat template, not with raw prompts"
            )
        return CompletionRequest(
            **_common(body, model),
            prompts=[prompt],
            parses_control_tokens=True,
            suffix=body.suffix or None,
        )
    system = (ChatMessage(role="system", content=body.system),) if body.system else ()
    return ChatRequest(
        **_common(body, model),
        messages=[*system, ChatMessage(role="user", content=prompt)],
        reasoning_effort=body.think if isinstance(body.think, str) else None,
        thinks=None if body.think is None else bool(body.think),
    )


class _Common(TypedDict):
    sampling: dict[str, float | int]
    seed: int | None
    stop: tuple[str, ...]
    max_new_tokens: int | None
    top_logprobs: int | None
    grammar: str | None


def _common(body: CommonBody, model: ServedModel) -> _Common:
    options = body.options or _NO_OPTIONS
    _check_options(options, model)
    stop = options.stop
    limit = options.num_predict
    return _Common(
        sampling=_sampling(options),
        seed=options.seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        max_new_tokens=None if limit is None or limit < 1 else limit,
        top_logprobs=num_top_logprobs(body.logprobs, body.top_logprobs),
        grammar=_grammar(body.format),
    )


def _sampling(options: Options) -> dict[str, float | int]:
    return given(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repeat_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
    )


def check_context(options: Options | None, model: ServedModel) -> None:
    """Raise ``ApiError`` if ``options`` request a longer context than the model has."""
    if options is None or options.num_ctx is None:
        return
    if options.num_ctx > model.context_tokens:
        raise invalid(
            "options.num_ctx",
            f"options.num_ctx is {options.num_ctx}, but the model is deployed with a context "
            f"of {model.context_tokens} tokens: omit num_ctx, or redeploy the model with "
            "--context",
        )


def _check_options(options: Options, model: ServedModel) -> None:
    check_context(options, model)
    penalizes = options.repeat_penalty not in (None, 1.0)
    if penalizes and options.repeat_last_n not in (None, -1):
        raise invalid(
            "options.repeat_last_n",
            "options.repeat_last_n is not supported: repeat_penalty applies to the whole text (-1)",
            code="unsupported_parameter",
        )


def _grammar(format_: str | dict[str, Any] | None) -> str | None:
    if isinstance(format_, dict):
        return schema_grammar(format_, "format")
    return build.json_object() if format_ == "json" else None


def _messages(messages: Sequence[Message]) -> list[ChatMessage]:
    """Return the messages. Tool results without an id are matched to calls when the prompt is built
    (``potluck.text.template_gaps``).
    """
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Message, where: str) -> ChatMessage:
    if message.role not in _ROLES:
        raise invalid(
            f"{where}.role", f"unknown role {message.role[:20]!r}: use {', '.join(_ROLES)}"
        )
    if message.role != "assistant" and (message.tool_calls or message.thinking):
        raise invalid(
            f"{where}.role",
            f"{where} has the role {message.role}: only assistant messages may have tool "
            "calls and thinking",
        )
    if message.role != "tool" and (message.tool_name or message.tool_call_id):
        raise invalid(
            f"{where}.role",
            f"{where} has the role {message.role}: only messages with the role tool may "
            "answer a tool call",
        )
    return ChatMessage(
        role=message.role,
        content=message.content or "",
        tool_calls=tuple(_calls(message, where)),
        name=message.tool_name if message.role == "tool" else None,
        tool_call_id=(message.tool_call_id or "") if message.role == "tool" else None,
        reasoning=message.thinking,
    )


def _calls(message: Message, where: str) -> Iterable[ToolCall]:
    """Convert Ollama's tool calls; those without an id get one."""
    for number, call in enumerate(message.tool_calls or ()):
        yield ToolCall(
            call_id=call.id or f"{where}.{number}",
            name=call.function.name,
            arguments=msgspec.json.encode(call.function.arguments).decode(),
        )
