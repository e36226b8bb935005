"""Convert OpenAI's request bodies to ``GenerationRequest``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict, TypeVar

from potluck import grammars
from potluck.api.bodies import validated
from potluck.api.dialects.openai.bodies import (
    AllowedTools,
    ChatBody,
    CommonBody,
    CompletionBody,
    ContentPart,
    Message,
    NamedTool,
    ResponseFormat,
    StructuredOutputs,
    Thinking,
    ToolChoice,
)
from potluck.api.errors import invalid
from potluck.api.grammars import choice_grammar, only_one, schema_grammar, written_grammar
from potluck.api.requests import ChatRequest, CompletionRequest, given, num_top_logprobs
from potluck.api.tools import not_among, tool_use
from potluck.text.chat import chat_ending
from potluck.types.output import ToolMode, ToolUse
from potluck.types.ranges import require_number
from potluck.types.text import ChatMessage, Tool, ToolCall

_T = TypeVar("_T")

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default ``max_tokens`` of completions. A chat continues to the end of the context."""

_MAX_NAME_CHARACTERS = 64
"""Maximum length of a message's ``name``, as in OpenAI's API."""

_ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_request(body: ChatBody) -> ChatRequest:
    """Convert a chat completion request. Raises ``PotluckError``."""
    messages = [_message(each, f"messages[{index}]") for index, each in enumerate(body.messages)]
    effort = _reasoning_effort(body)
    top_logprobs = num_top_logprobs(body.logprobs, body.top_logprobs)
    return ChatRequest(
        **_common(body),
        max_new_tokens=_max_new_tokens(body, body.max_completion_tokens),
        top_logprobs=top_logprobs,
        messages=messages,
        ending=chat_ending(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        ),
        tool_use=_tool_use(body),
        reasoning_effort=effort,
        thinks=_thinks(body, effort),
        template_variables=body.chat_template_kwargs or {},
        prediction="" if body.prediction is None else _text(body.prediction.content),
    )


def _reasoning_effort(body: ChatBody) -> str | None:
    effort = None if body.reasoning is None else body.reasoning.effort
    return _agreed("reasoning", effort, "reasoning_effort", body.reasoning_effort)


def _thinks(body: ChatBody, effort: str | None) -> bool | None:
    """Return whether reasoning is switched on; None if that is left to the template."""
    thinking = body.thinking
    if isinstance(thinking, Thinking):
        thinking = thinking.type == "enabled"
    thinks = _agreed("thinking", thinking, "enable_thinking", body.enable_thinking)
    enabled = None if body.reasoning is None else body.reasoning.enabled
    thinks = _agreed("reasoning", enabled, "enable_thinking", thinks)
    by_effort = None if effort is None else effort != "none"
    return _agreed("enable_thinking", thinks, "reasoning_effort", by_effort)


def _agreed(name: str, value: _T | None, other_name: str, other: _T | None) -> _T | None:
    """Return the value of two fields that mean the same; None if both are omitted.

    Raise ``ApiError`` if they contradict each other.
    """
    if value is not None and other is not None and value != other:
        raise invalid(name, f"{name} contradicts {other_name}: omit one of them")
    return other if value is None else value


def completion_request(body: CompletionBody) -> CompletionRequest:
    """Convert a completion request. Raises ``PotluckError``."""
    if body.logprobs is not None:
        require_number("logprobs", body.logprobs)
    max_new_tokens = _max_new_tokens(body, None)
    return CompletionRequest(
        **_common(body),
        max_new_tokens=DEFAULT_COMPLETION_TOKENS if max_new_tokens is None else max_new_tokens,
        top_logprobs=body.logprobs,
        prompts=texts_or_tokens(body.prompt, "prompt"),
        echo=bool(body.echo),
        suffix=body.suffix or None,
    )


class _Common(TypedDict):
    grammar: str | None
    grammar_param: str
    sampling: dict[str, float | int]
    logit_bias: Mapping[str, float]
    seed: int | None
    stop: tuple[str, ...]
    num_choices: int
    user: str | None


def _common(body: CommonBody) -> _Common:
    grammar = _requested_grammar(body)
    return _Common(
        grammar=None if grammar is None else grammar[1],
        grammar_param="response_format" if grammar is None else grammar[0],
        sampling=_sampling(body),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        stop=_stop(body),
        num_choices=1 if body.n is None else body.n,
        user=body.user,
    )


def _message(message: Message, where: str) -> ChatMessage:
    if message.role not in _ROLES:
        raise invalid(
            f"{where}.role", f"unknown role {message.role[:20]!r}: use {', '.join(_ROLES)}"
        )
    if message.name is not None and len(message.name) > _MAX_NAME_CHARACTERS:
        raise invalid(
            f"{where}.name",
            f"{where}.name has {len(message.name)} characters; the limit is {_MAX_NAME_CHARACTERS}",
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
    if message.content is not None:
        return _text(message.content)
    if message.role != "assistant":
        raise invalid(
            f"{where}.content",
            f"{where}.content is required",
            code="missing_required_parameter",
        )
    return ""  # OpenAI's own answers have no content if the assistant called a tool or refused


def _text(content: str | Sequence[ContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _tool_use(body: ChatBody) -> ToolUse:
    tools = [tool.function.tool() for tool in body.tools or ()]
    choice: object = body.tool_choice
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, dict):
        choice = validated(ToolChoice, choice, "tool_choice")
    if isinstance(choice, NamedTool):
        return tool_use(
            tools, mode=ToolMode.REQUIRED, name=choice.function.name, is_parallel=is_parallel
        )
    if isinstance(choice, AllowedTools):
        mode = ToolMode(choice.allowed_tools.mode)
        return tool_use(_allowed(tools, choice), mode=mode, is_parallel=is_parallel)
    return tool_use(tools, mode=ToolMode(choice or "auto"), is_parallel=is_parallel)


def _allowed(tools: Sequence[Tool], choice: AllowedTools) -> list[Tool]:
    """Return the tools that may be called; the model is not shown the others."""
    known = {tool.name for tool in tools}
    allowed = {each.function.name: index for index, each in enumerate(choice.allowed_tools.tools)}
    for name, index in allowed.items():
        if name not in known:
            raise not_among(f"tool_choice.allowed_tools.tools[{index}]", name)
    return [tool for tool in tools if tool.name in allowed]


def _sampling(body: CommonBody) -> dict[str, float | int]:
    if body.repeat_penalty is not None:
        require_number("repeat_penalty", body.repeat_penalty)
    return given(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=_agreed(
            "repeat_penalty",
            body.repeat_penalty,
            "repetition_penalty",
            body.repetition_penalty,
        ),
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
    )


def _max_new_tokens(body: CommonBody, max_completion_tokens: int | None) -> int | None:
    limits = given(max_tokens=body.max_tokens, max_completion_tokens=max_completion_tokens)
    for name, value in limits.items():
        if value != 0:  # 0 returns only the prompt, if echo is set
            require_number(name, value)
    if len(set(limits.values())) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ: set only one")
    return next(iter(limits.values()), None)


def _stop(body: CommonBody) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def texts_or_tokens(prompt: object, param: str) -> list[str | list[int]]:
    """Parse a prompt in any of its four forms: text, texts, tokens, lists of tokens.

    Raises ``ApiError`` naming ``param`` for anything else.
    """
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        if all(isinstance(each, str) for each in prompt):
            return list(prompt)
        if _are_tokens(prompt):
            return [prompt]
        if all(isinstance(each, list) and _are_tokens(each) for each in prompt):
            return list(prompt)
    raise invalid(
        param, f"{param} must be text, a list of texts, a list of tokens, or a list of those"
    )


def _are_tokens(values: list[object]) -> bool:
    return all(type(value) is int for value in values)


def _requested_grammar(body: CommonBody) -> tuple[str, str] | None:
    """Return the field that constrains the answer, and its grammar; None if there is no constraint.

    Raises ``PotluckError``.
    """
    found: dict[str, str] = {}
    if body.response_format is not None:
        grammar = _response_format(body.response_format)
        if grammar is not None:
            found["response_format"] = grammar
    if body.structured_outputs is not None:
        constraints = _constraints(body.structured_outputs, "structured_outputs.")
        if not constraints:
            raise invalid(
                "structured_outputs",
                "structured_outputs has no constraint: set json, regex, choice or grammar",
            )
        found |= constraints
    guided = StructuredOutputs(
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    return only_one(found | _constraints(guided, "guided_"))


def _response_format(response_format: ResponseFormat) -> str | None:
    where, own = "response_format.json_schema", "response_format.schema"
    if response_format.schema is not None and response_format.type != "json_object":
        raise invalid(own, f"{own} requires the type json_object")
    if response_format.type != "json_schema":
        if response_format.json_schema is not None:
            raise invalid(where, f"{where} requires the type json_schema")
        if response_format.schema is not None:
            return schema_grammar(response_format.schema, own)
        return None if response_format.type == "text" else grammars.json_object()
    if response_format.json_schema is None:
        raise invalid(where, f"{where} is required", code="missing_required_parameter")
    document = response_format.json_schema.schema
    if document is None:  # OpenAI allows clients to omit "schema"
        return grammars.json_object()
    return schema_grammar(document, f"{where}.schema")


def _constraints(outputs: StructuredOutputs, where: str) -> dict[str, str]:
    """Return the grammars of the fields that are set, by field name; ``where`` is their prefix."""
    found: dict[str, str] = {}
    if outputs.json is not None:
        found[f"{where}json"] = schema_grammar(outputs.json, f"{where}json")
    if outputs.json_object:
        found[f"{where}json_object"] = grammars.json_object()
    if outputs.regex is not None:
        found[f"{where}regex"] = grammars.regex(outputs.regex)
    if outputs.choice is not None:
        found[f"{where}choice"] = choice_grammar(outputs.choice, f"{where}choice")
    if outputs.grammar is not None:
        found[f"{where}grammar"] = written_grammar(outputs.grammar, f"{where}grammar")
    return found
