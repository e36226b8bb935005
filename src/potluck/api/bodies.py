"""Strict parsing of request bodies: unknown fields and wrong types are rejected.

Every supported field is an attribute of the body's class; every ignored field is in a table of
``potluck.api.ignored_fields``. All other fields are rejected, so that no request is answered as if
it had asked for something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from potluck.api.body_bounds import check_amount, check_fields
from potluck.api.errors import ApiError, invalid
from potluck.api.ignored_fields import InertFields, drop_inert_fields
from potluck.types.ranges import shown

_MAX_NAME_CHARACTERS = 64
"""Maximum length of a client's own names in an error message. OpenAI's longest field name has 22.
"""

_PATH = re.compile(r" - at `\$([^`]*)`\Z")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")
"""The path at the end of msgspec's error messages, such as ``$.messages[0].content``. The key of a
value in a mapping is shown as ``...``."""

_WORDS: Mapping[object, str] = {
    str: "a text",
    int: "an integer",
    float: "a number",
    bool: "true or false",
    list: "a list",
    NoneType: "null",
}

_Place = tuple[str | int, ...]


class StrictObject(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of the classes of bodies and of the objects in them.

    Values are not converted, except that a number may be an integer.
    """


class LenientObject(StrictObject, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The base of the classes of objects whose other fields are ignored."""


class OneOf:
    """The base of the classes of objects that differ by their ``type``, which is a ``Literal``."""

    __slots__ = ()

    type: str


_VARIANTS: dict[type, Mapping[str, type[OneOf]]] = {}
"""Earlier results of ``variants``. ``functools.cache`` does not type-check with classes."""


def variants(kind: type[OneOf]) -> Mapping[str, type[OneOf]]:
    """Return the classes below ``kind`` by the values of ``type`` that they have."""
    if kind not in _VARIANTS:
        _VARIANTS[kind] = {
            name: each
            for each in _classes_below(kind)
            for name in get_args(_fields(each)["type"].type)
        }
    return _VARIANTS[kind]


def _classes_below(kind: type[OneOf]) -> Iterator[type[Any]]:
    for each in kind.__subclasses__():
        if issubclass(each, msgspec.Struct):
            yield each
        else:
            yield from _classes_below(each)


_T = TypeVar("_T")

_NO_FIELDS = InertFields()


def parse_object(body: bytes | bytearray, inert: InertFields = _NO_FIELDS) -> dict[str, Any]:
    """Decode a body that must be an object, without its ``inert`` fields. Raises ``ApiError``."""
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
    return drop_inert_fields(document, inert, "")


def validated(kind: type[_T], document: object, *where: str | int) -> _T:
    """Return ``document`` as a ``kind``. Raises ``ApiError`` that names the invalid field.

    ``where`` are the fields and indices that lead to ``document``, if it is not the body.
    """
    try:
        return msgspec.convert(document, kind, dec_hook=_variant)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), kind, document, where) from None


def parser(kind: type[_T], inert: InertFields = _NO_FIELDS) -> Callable[[bytes | bytearray], _T]:
    """Return a function that parses a body as a ``kind``, without its ``inert`` fields.

    It raises ``ApiError`` that names the invalid field.
    """
    return lambda body: validated(kind, parse_object(body, inert))


def check_type(values: dict[str, Any], where: str, supported: Iterable[str]) -> None:
    """Raise ``ApiError`` that names the ``type`` of the object at ``where`` if it is another."""
    kind = values.get("type")
    if isinstance(kind, str) and kind not in supported:
        raise invalid(
            f"{where}.type",
            f"{where} has the unsupported type {kind[:40]!r}; supported: {', '.join(supported)}",
            code="unsupported_value",
        )


def _variant(kind: type[OneOf], value: object) -> OneOf:
    """Convert an object to the class of its ``type``. msgspec adds the path to a ``ValueError``."""
    chosen = _chosen(kind, value)
    if chosen is None:
        raise ValueError
    try:
        return msgspec.convert(value, chosen, dec_hook=_variant)
    except msgspec.ValidationError:
        raise ValueError from None  # _refusal says what is wrong in it


def _chosen(kind: type[OneOf], value: object) -> type[OneOf] | None:
    name = value.get("type") if isinstance(value, dict) else None
    return variants(kind).get(name) if isinstance(name, str) else None


def _refusal(message: str, kind: Any, value: Any, place: _Place) -> ApiError:
    """Return the error for ``value``, which is no ``kind``. ``message`` is msgspec's.

    msgspec says where the invalid value is. The rest is said in the words of this API, with the
    allowed values of a ``Literal``.
    """
    unknown = _unknown_field(_object_kind(kind), value, place)
    if unknown is not None:  # its name, which the client chose, is in the message
        return unknown
    path = _PATH.search(message)
    for step in _STEP.finditer(path[1] if path else ""):
        name, index = step.groups()
        if name is not None:
            kind, key = _fields(_object_kind(kind))[name].type, name
        elif index != "...":
            (kind,), key = get_args(_only(kind, list)), int(index)
        else:
            kind = get_args(_only(kind, dict))[1]
            key = next(key for key, each in value.items() if not _is_valid(each, kind))
        value, place = value[key], (*place, key)
    return _refusal_here(kind, value, place)


def _refusal_here(kind: Any, value: Any, place: _Place) -> ApiError:
    """Return the error for ``value`` if none of its fields has an invalid value."""
    expected = _object_kind(kind)
    if isinstance(value, dict) and issubclass(expected, msgspec.Struct):
        for name, field in _fields(expected).items():
            if field.required and name not in value:
                return _missing((*place, name))
        unknown = _unknown_field(expected, value, place)
        if unknown is not None:
            return unknown
    elif isinstance(value, dict) and issubclass(expected, OneOf):
        if "type" not in value:
            return _missing((*place, "type"))
        chosen = _chosen(expected, value)
        if chosen is None:
            return _wrong(Literal[*variants(expected)], value["type"], (*place, "type"))
        try:
            msgspec.convert(value, chosen, dec_hook=_variant)
        except msgspec.ValidationError as error:
            return _refusal(str(error), chosen, value, place)
    return _wrong(kind, value, place)


def _unknown_field(kind: type[Any], value: object, place: _Place) -> ApiError | None:
    """Return the error for the first field of an object that ``kind`` has not, if there is one."""
    if (
        not isinstance(value, dict)
        or not issubclass(kind, StrictObject)
        or issubclass(kind, LenientObject)
    ):
        return None
    name = next((name for name in value if name not in kind.__struct_fields__), None)
    if name is None:
        return None
    param = _written((*place, name))
    return invalid(param, f"unknown parameter {param}", code="unknown_parameter")


def _fields(kind: type[Any]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(kind)}


def _missing(place: _Place) -> ApiError:
    param = _written(place)
    return invalid(param, f"{param} is required", code="missing_required_parameter")


def _wrong(kind: Any, value: object, place: _Place) -> ApiError:
    param = _written(place)
    return invalid(
        param, f"{param} must be {_expected(kind)}, not {_given(value)}", code="invalid_type"
    )


def _is_valid(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind, dec_hook=_variant)
    except msgspec.ValidationError:
        return False
    return True


def _members(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, or ``kind`` if it is another type."""
    if get_origin(kind) in (Union, UnionType):
        for each in get_args(kind):
            yield from _members(each)
    else:
        yield kind


def _only(kind: Any, origin: type) -> Any:
    """Return the type in ``kind`` whose origin is ``origin``, such as ``list[str]``."""
    return next(each for each in _members(kind) if get_origin(each) is origin)


def _object_kind(kind: Any) -> type[Any]:
    """Return the class of objects in ``kind``; ``object`` if there is none."""
    classes = (each for each in _members(kind) if isinstance(each, type))
    return next((each for each in classes if issubclass(each, msgspec.Struct | OneOf)), object)


def _expected(kind: Any) -> str:
    words: list[str] = []
    for each in _members(kind):
        if get_origin(each) is Literal:
            words += map(repr, get_args(each))
        else:
            words.append(_WORDS.get(get_origin(each) or each, "an object"))
    if len(words) > 1 and "null" in words:
        words.remove("null")
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def _given(value: object) -> str:
    match value:
        case list():
            return "a list"
        case dict():
            return "an object"
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
    return shown(value)


def _written(place: Iterable[str | int]) -> str:
    text = ""
    for part in place:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f"{'.' if text else ''}{part[:_MAX_NAME_CHARACTERS]}"
    return text
