"""The bodies that are accepted, and what is said of others.

Every field of a body is known here: it is supported, or it is refused unless its value is the
neutral one, which asks for nothing. Unknown fields are refused too, so that no request is answered
as if it had said something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, ValidationError

from potluck.api.errors import ApiError, invalid

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_NAME_CHARACTERS = 64
"""Of a client's own names in an error. OpenAI's longest is 22."""

_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(BaseModel):
    """``stream_options``."""

    model_config = _STRICT

    include_usage: bool | None = None


class CommonBody(BaseModel):
    """What chat completions and completions have in common.

    None is what a field has when it is left out. ``user`` is a label for the log.
    """

    model_config = _STRICT

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
    stop: str | list[str] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None


class ContentPart(BaseModel):
    """A part of a message's content; only text is supported."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: str
    text: str | None = None


class Message(BaseModel):
    """A message of a chat."""

    model_config = _STRICT

    role: str
    content: str | list[ContentPart]


class ChatBody(CommonBody):
    """The body of ``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(CommonBody):
    """The body of ``/v1/completions``.

    ``prompt`` is checked where it is read: it may be a long list of numbers.
    """

    prompt: Any
    logprobs: int | None = None


_NO_TOOLS: Mapping[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "parallel_tool_calls": (None, True, False),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
}

_NEUTRAL_COMMON: Mapping[str, tuple[object, ...]] = {
    "metadata": (None, {}),
    "store": (None, False),
    "service_tier": (None, "auto", "default"),
}

NEUTRAL_CHAT: Mapping[str, tuple[object, ...]] = {
    **_NO_TOOLS,
    **_NEUTRAL_COMMON,
    "audio": (None,),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "prompt_cache_key": (None,),
    "prompt_cache_options": (None,),
    "prompt_cache_retention": (None,),
    "reasoning_effort": (None,),
    "response_format": (None, {"type": "text"}),
    "safety_identifier": (None,),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Fields of OpenAI's chat API that are not supported, and the values that ask for nothing."""

NEUTRAL_COMPLETION: Mapping[str, tuple[object, ...]] = {
    **_NEUTRAL_COMMON,
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
}
"""The same for completions."""

NEUTRAL_MESSAGE: Mapping[str, tuple[object, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
"""The same for messages: an assistant's answer may be sent back as it was received."""

NEUTRAL_STREAM_OPTIONS: Mapping[str, tuple[object, ...]] = {"include_obfuscation": (None, False)}


def parse_chat(body: bytes) -> ChatBody:
    """Read a chat request. Raises ``ApiError`` that names what is wrong."""
    document = _without_neutral(_parse_object(body), NEUTRAL_CHAT, "")
    messages = document.get("messages")
    if isinstance(messages, list):
        document["messages"] = [
            _without_neutral(message, NEUTRAL_MESSAGE, f"messages[{index}].")
            if isinstance(message, dict)
            else message
            for index, message in enumerate(messages)
        ]
    return _validate(ChatBody, document)


def parse_completion(body: bytes) -> CompletionBody:
    """Read a completion request. Raises ``ApiError`` that names what is wrong."""
    return _validate(CompletionBody, _without_neutral(_parse_object(body), NEUTRAL_COMPLETION, ""))


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(None, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(document, dict):
        raise invalid(None, "the body is not a JSON object", code="invalid_json")
    options = document.get("stream_options")
    if isinstance(options, dict):
        document["stream_options"] = _without_neutral(
            options, NEUTRAL_STREAM_OPTIONS, "stream_options."
        )
    return document


def _without_neutral(
    values: Mapping[str, Any], neutral: Mapping[str, tuple[object, ...]], where: str
) -> dict[str, Any]:
    """``values`` without the unsupported fields whose value is neutral; raises for others."""
    kept = {}
    for name, value in values.items():
        if name not in neutral:
            kept[name] = value
        elif not any(_is_same(value, each) for each in neutral[name]):
            allowed = " or ".join(msgspec.json.encode(each).decode() for each in neutral[name])
            raise invalid(
                f"{where}{name}",
                f"{where}{name} is not supported: leave it out, or give {allowed}",
                code="unsupported_parameter",
            )
    return kept


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other  # True is no 1, and 1.0 neither


_Body = TypeVar("_Body", bound=CommonBody)


def _validate(kind: type[_Body], document: dict[str, Any]) -> _Body:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(details, document) from None


def _refusal(details: Sequence[ErrorDetails], document: dict[str, Any]) -> ApiError:
    """One error for the place deepest inside the document, with all that is said of it."""
    found = [(_place(each, document), each) for each in details]
    place = max((place for place, _ in found), key=len)
    here = [each for other, each in found if other == place]
    param = _written(place)
    if here[0]["type"] == "extra_forbidden":
        return invalid(param, f"there is no parameter {param}", code="unknown_parameter")
    if here[0]["type"] == "missing":
        return invalid(param, f"{param} is missing", code="missing_required_parameter")
    says = dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in here)
    return invalid(param, f"{param} should be {', or '.join(says)}", code="invalid_type")


def _place(details: ErrorDetails, document: Any) -> tuple[str | int, ...]:
    """The keys and indices of the error's place that exist, and the last one if that is missing.

    Pydantic puts the names of the types that it tried in between.
    """
    place: list[str | int] = []
    value = document
    for part in details["loc"]:
        is_key = isinstance(value, dict) and part in value
        is_index = isinstance(value, list) and isinstance(part, int)
        if is_key or is_index:
            value = value[part]
            place.append(part)
    if details["type"] == "missing":
        place.append(details["loc"][-1])
    return tuple(place)


def _written(place: Iterable[str | int]) -> str:
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f"{'.' if text else ''}{part[:_MAX_NAME_CHARACTERS]}"
    return text
