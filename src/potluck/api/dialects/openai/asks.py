"""From OpenAI's bodies to what is asked."""

from __future__ import annotations

from potluck.api.asked import ChatAsked, TextAsked
from potluck.api.dialects.openai.bodies import (
    ChatBody,
    CommonBody,
    CompletionBody,
    ContentPart,
    Message,
)
from potluck.api.errors import invalid
from potluck.text.chat import chat_ending
from potluck.types.ranges import require_number
from potluck.types.text import ChatMessage

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's ``max_tokens`` of completions. A chat goes on to the end of the context."""

MAX_NAME_CHARACTERS = 64
"""Of a message's ``name``, as in OpenAI's API."""


def chat_asked(body: ChatBody) -> ChatAsked:
    """What a body of chat completions asks for. Raises ``PotluckError``."""
    messages = [_message(message, index) for index, message in enumerate(body.messages)]
    top_logprobs = body.top_logprobs or 0
    if not body.logprobs and top_logprobs:
        raise invalid("top_logprobs", "top_logprobs is for answers with logprobs: set logprobs")
    return ChatAsked(
        model_id=body.model,
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
        reasoning_effort=body.reasoning_effort,
    )


def completion_asked(body: CompletionBody) -> TextAsked:
    """What a body of completions asks for. Raises ``PotluckError``."""
    if body.logprobs is not None:
        require_number("logprobs", body.logprobs)
    asked = _max_new_tokens(body, None)
    return TextAsked(
        model_id=body.model,
        sampling=_sampling(body),
        logit_bias=body.logit_bias or {},
        seed=body.seed,
        stop=_stop(body),
        num_choices=1 if body.n is None else body.n,
        max_new_tokens=DEFAULT_COMPLETION_TOKENS if asked is None else asked,
        top_logprobs=body.logprobs,
        user=body.user,
        prompts=_prompts(body.prompt),
        echo=bool(body.echo),
    )


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


def _message(message: Message, index: int) -> ChatMessage:
    if message.role in ("tool", "function"):
        raise invalid(
            f"messages[{index}].role",
            f"messages with the role {message.role} are not supported: there are no tools",
            code="unsupported_value",
        )
    if message.role not in ("system", "developer", "user", "assistant"):
        raise invalid(
            f"messages[{index}].role",
            f"there is no role {message.role[:20]!r}: use system, developer, user or assistant",
        )
    # OpenAI's newer name for the system's words, which few chat templates know.
    role = "system" if message.role == "developer" else message.role
    if message.name is not None and len(message.name) > MAX_NAME_CHARACTERS:
        raise invalid(
            f"messages[{index}].name",
            f"messages[{index}].name has {len(message.name)} characters,"
            f" and may have {MAX_NAME_CHARACTERS}",
        )
    return ChatMessage(role=role, content=_content(message, index), name=message.name)


def _content(message: Message, index: int) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        return "".join(
            _text_of(part, f"messages[{index}].content[{number}]")
            for number, part in enumerate(message.content)
        )
    if message.role != "assistant":
        raise invalid(
            f"messages[{index}].content",
            f"messages[{index}].content is missing",
            code="missing_required_parameter",
        )
    return ""  # OpenAI's own answers have none where the assistant called a tool or refused


def _text_of(part: ContentPart, where: str) -> str:
    if part.type != "text":
        raise invalid(
            f"{where}.type",
            f"{where} is of the type {part.type[:20]!r}: only text is supported",
            code="unsupported_value",
        )
    if part.text is None:
        raise invalid(f"{where}.text", f"{where}.text is missing")
    for name in part.model_extra or {}:
        raise invalid(
            f"{where}.{name[:20]}", f"a part of text has no {name[:20]!r}", code="unknown_parameter"
        )
    return part.text


def _prompts(asked: object) -> list[str | list[int]]:
    """The prompts of all four forms: text, texts, tokens, lists of tokens."""
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
        "prompt", "prompt must be text, a list of texts, a list of tokens, or a list of those"
    )


def _are_tokens(values: list[object]) -> bool:
    return all(type(value) is int for value in values)
