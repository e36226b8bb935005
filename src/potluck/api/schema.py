"""The bodies that are accepted, and what is said of others.

Every field of a body is known: it is supported and has a place here, or it does nothing and is in
``potluck.api.other_fields``. Unknown fields are refused, so that no request is answered as if it
had said something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potluck.api.body_bounds import check_amount, check_fields
from potluck.api.errors import ApiError, invalid
from potluck.api.other_fields import (
    CHAT,
    COMPLETION,
    MESSAGE,
    PART,
    STREAM_OPTIONS,
    without_others,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_NAME_CHARACTERS = 64
"""Of a client's own names in an error. OpenAI's longest is 22."""

_FIRST_ERROR = Field(fail_fast=True)
"""For lists: as many errors as a client sends wrong items take long to make, and one is told."""

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
    stop: str | Annotated[list[str], _FIRST_ERROR] | None = None
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
    content: str | Annotated[list[ContentPart], _FIRST_ERROR] | None = None
    name: str | None = None


class ChatBody(CommonBody):
    """The body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], _FIRST_ERROR]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )


class CompletionBody(CommonBody):
    """The body of ``/v1/completions``.

    ``prompt`` is checked where it is read: it may be a long list of numbers.
    """

    prompt: Any
    logprobs: int | None = None
    echo: bool | None = None


def parse_chat(body: bytes | bytearray) -> ChatBody:
    """Read a chat request. Raises ``ApiError`` that names what is wrong."""
    document = without_others(_parse_object(body), CHAT, "")
    messages = document.get("messages")
    if isinstance(messages, list):
        document["messages"] = [
            _plain_message(message, f"messages[{index}].") if isinstance(message, dict) else message
            for index, message in enumerate(messages)
        ]
    return _validate(ChatBody, document)


def parse_completion(body: bytes | bytearray) -> CompletionBody:
    """Read a completion request. Raises ``ApiError`` that names what is wrong."""
    return _validate(CompletionBody, without_others(_parse_object(body), COMPLETION, ""))


def _parse_object(body: bytes | bytearray) -> dict[str, Any]:
    check_amount(body)
    try:
        document = msgspec.json.decode(body)
    except UnicodeDecodeError as error:
        raise invalid(None, "the body is not valid UTF-8", code="invalid_json") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(None, f"the body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(document, dict):
        raise invalid(None, "the body is not a JSON object", code="invalid_json")
    check_fields(document)
    options = document.get("stream_options")
    if isinstance(options, dict):
        document["stream_options"] = without_others(options, STREAM_OPTIONS, "stream_options.")
    return document


def _plain_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    plain = without_others(message, MESSAGE, where)
    content = plain.get("content")
    if isinstance(content, list):
        plain["content"] = [
            without_others(part, PART, f"{where}content[{index}].")
            if isinstance(part, dict)
            else part
            for index, part in enumerate(content)
        ]
    return plain


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
