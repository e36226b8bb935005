"""Strict parsing of request bodies: unknown fields and wrong types are rejected.

Every supported field is an attribute of the body's class; every ignored field is in a table of
``potluck.api.other_fields``. All other fields are rejected, so that no request is answered as if it
had asked for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from potluck.api.body_bounds import check_amount, check_fields
from potluck.api.errors import ApiError, invalid

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAX_NAME_CHARACTERS = 64
"""Maximum length of a client's own names in an error message. OpenAI's longest field name has 22.
"""

FIRST_ERROR = Field(fail_fast=True)
"""Use fail-fast validation for lists: collecting an error per invalid item can take long, and only
one error is reported."""

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""Pydantic configuration of all body classes."""

_Body = TypeVar("_Body", bound=BaseModel)


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Decode a body that must be a JSON object. Raises ``ApiError``."""
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
    return document


def validated(kind: type[_Body], document: dict[str, Any]) -> _Body:
    """Validate ``document`` as a ``kind``. Raises ``ApiError`` that names the invalid field."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise _refusal(details, document) from None


def check_type(values: dict[str, Any], where: str, supported: Sequence[str]) -> None:
    """Raise ``ApiError`` that names the ``type`` of the object at ``where`` if it is another."""
    kind = values.get("type")
    if isinstance(kind, str) and kind not in supported:
        raise invalid(
            f"{where}.type",
            f"{where} has the unsupported type {kind[:40]!r}; supported: {', '.join(supported)}",
            code="unsupported_value",
        )


def _refusal(details: Sequence[ErrorDetails], document: dict[str, Any]) -> ApiError:
    """Merge the errors at the most deeply nested location into one ``ApiError``."""
    found = [(_place(each, document), each) for each in details]
    place = max((place for place, _ in found), key=len)
    here = [each for other, each in found if other == place]
    param = _written(place)
    if here[0]["type"] == "extra_forbidden":
        return invalid(param, f"unknown parameter {param}", code="unknown_parameter")
    if here[0]["type"] == "missing":
        return invalid(param, f"{param} is required", code="missing_required_parameter")
    says = dict.fromkeys(each["msg"].removeprefix("Input should be ") for each in here)
    return invalid(param, f"{param} should be {', or '.join(says)}", code="invalid_type")


def _place(details: ErrorDetails, document: Any) -> tuple[str | int, ...]:
    """Return the keys and indices of the error's location that exist, plus the missing field if
    any.

    Pydantic also inserts the names of the types that it tried.
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
