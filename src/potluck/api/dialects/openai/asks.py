"""From OpenAI's bodies to what is asked."""

from __future__ import annotations

from potluck.api.asked import ChatAsked, TextAsked
from potluck.api.dialects.openai.bodies import (
    ChatBody,
    CommonBody,
    CompletionBody,
    NamedTool,
)
from potluck.api.dialects.openai.messages import chat_messages
from potluck.api.dialects.openai.structured import grammar_asked
from potluck.api.errors import invalid
from potluck.api.tools import tool_use
from potluck.text.chat import chat_ending
from potluck.types.output import ToolMode, ToolUse
from potluck.types.ranges import require_number

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's ``max_tokens`` of completions. A chat goes on to the end of the context."""


def chat_asked(body: ChatBody) -> ChatAsked:
    """What a body of chat completions asks for. Raises ``PotluckError``."""
    messages = chat_messages(body.messages)
    top_logprobs = body.top_logprobs or 0
    if not body.logprobs and top_logprobs:
        raise invalid("top_logprobs", "top_logprobs is for answers with logprobs: set logprobs")
    grammar = grammar_asked(body)
    return ChatAsked(
        model_id=body.model,
        grammar=None if grammar is None else grammar[1],
        grammar_param="response_format" if grammar is None else grammar[0],
        sampling=_sampling(body),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        stop=_stop(body),
        num_choices=1 if body.n is None else body.n,
        max_new_tokens=_max_new_tokens(body, body.max_completion_tokens),
        top_logprobs=top_logprobs if body.logprobs else None,
        user=body.user,
        messages=messages,
        ending=chat_ending(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        ),
        tool_use=_tool_use(body),
        reasoning_effort=body.reasoning_effort,
        thinks=None if body.reasoning_effort is None else body.reasoning_effort != "none",
        template_variables=body.chat_template_kwargs or {},
    )


def completion_asked(body: CompletionBody) -> TextAsked:
    """What a body of completions asks for. Raises ``PotluckError``."""
    if body.logprobs is not None:
        require_number("logprobs", body.logprobs)
    asked = _max_new_tokens(body, None)
    grammar = grammar_asked(body)
    return TextAsked(
        model_id=body.model,
        grammar=None if grammar is None else grammar[1],
        grammar_param="response_format" if grammar is None else grammar[0],
        sampling=_sampling(body),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        stop=_stop(body),
        num_choices=1 if body.n is None else body.n,
        max_new_tokens=DEFAULT_COMPLETION_TOKENS if asked is None else asked,
        top_logprobs=body.logprobs,
        user=body.user,
        prompts=texts_or_tokens(body.prompt, "prompt"),
        echo=bool(body.echo),
        suffix=body.suffix or None,
    )


def _tool_use(body: ChatBody) -> ToolUse:
    tools = [tool.function.tool() for tool in body.tools or ()]
    choice = body.tool_choice
    is_parallel = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        return tool_use(
            tools, mode=ToolMode.REQUIRED, name=choice.function.name, is_parallel=is_parallel
        )
    return tool_use(tools, mode=ToolMode(choice or "auto"), is_parallel=is_parallel)


def _sampling(body: CommonBody) -> dict[str, float | int]:
    asked = {
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
    }
    return {name: value for name, value in asked.items() if value is not None}


def _max_new_tokens(body: CommonBody, max_completion_tokens: int | None) -> int | None:
    asked = {
        "max_tokens": body.max_tokens,
        "max_completion_tokens": max_completion_tokens,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if value != 0:  # which asks for the prompt alone, where it is given back
            require_number(name, value)
    if len(set(given.values())) > 1:
        raise invalid("max_tokens", "max_tokens and max_completion_tokens differ: give one")
    return next(iter(given.values()), None)


def _stop(body: CommonBody) -> tuple[str, ...]:
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def texts_or_tokens(asked: object, param: str) -> list[str | list[int]]:
    """Return the values of all four forms: text, texts, tokens, lists of tokens.

    Raises ``ApiError`` naming ``param`` for anything else.
    """
    if isinstance(asked, str):
        return [asked]
    if isinstance(asked, list) and asked:
        if all(isinstance(each, str) for each in asked):
            return list(asked)
        if _are_tokens(asked):
            return [asked]
        if all(isinstance(each, list) and _are_tokens(each) for each in asked):
            return list(asked)
    raise invalid(
        param, f"{param} must be text, a list of texts, a list of tokens, or a list of those"
    )


def _are_tokens(values: list[object]) -> bool:
    return all(type(value) is int for value in values)
