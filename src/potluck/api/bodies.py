"""Bodies read strictly: every field is known, and has the type that it should have.

A field is supported and has a place in the body's class, or it does nothing and is in a table of
``potluck.api.other_fields``. Unknown fields are refused, so that no request is answered as if it
had said something else.
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
"""Of a client's own names in an error. OpenAI's longest is 22."""

FIRST_ERROR = Field(fail_fast=True)
"""For lists: as many errors as a client sends wrong items take long to make, and one is told."""

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""Of the classes of bodies."""

_Body = TypeVar("_Body", bound=BaseModel)


def parse_object(body: bytes | bytearray) -> dict[str, Any]:
    """Decode a body that is a JSON object. Raises ``ApiError``."""
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
    """Return ``document`` as a ``kind``. Raises ``ApiError`` that names what is wrong."""
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
