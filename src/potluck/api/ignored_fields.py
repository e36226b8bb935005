"""Fields that are accepted and have no effect.

A *harmless* field is validated and then ignored: it describes the request (a label, accounting,
caching, a performance hint), and no value of it changes the answer. Any other unsupported field
would change the answer, so it is rejected unless its value is *neutral*, that is, requests nothing.
``docs/reference/http-api.md`` lists both kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from potluck.api.errors import invalid

MAX_LABEL_CHARACTERS = 512
"""Maximum length of a harmless text: that of a ``metadata`` value, OpenAI's longest."""
MAX_LABELS = 16
MAX_LABEL_NAME_CHARACTERS = 64
"""Maximum number of entries of ``metadata``, as in OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredField:
    """The harmless values of a field in addition to null, as a description and as a check.

    ``is_kept``: the field is read, but no answer depends on it.
    """

    expected: str
    holds: Callable[[object], bool]
    is_kept: bool = False


def _is_label(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_LABEL_CHARACTERS


def _are_labels(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_LABELS
        and all(len(name) <= MAX_LABEL_NAME_CHARACTERS for name in value)
        and all(map(_is_label, value.values()))
    )


def _is_flat(value: object) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_LABELS
        and all(
            each is None or isinstance(each, bool | int | float) or _is_label(each)
            for each in value.values()
        )
    )


LABEL = IgnoredField(
    expected=f"a text of at most {MAX_LABEL_CHARACTERS} characters", holds=_is_label
)
LABELS = IgnoredField(expected=f"an object of at most {MAX_LABELS} short texts", holds=_are_labels)
BOOLEAN = IgnoredField(expected="true or false", holds=lambda value: isinstance(value, bool))
OBJECT = IgnoredField(expected="an object", holds=lambda value: isinstance(value, dict))
ANYTHING = IgnoredField(expected="anything", holds=lambda value: True)
FLAT = IgnoredField(expected=f"an object of at most {MAX_LABELS} short values", holds=_is_flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class InertFields:
    """The harmless fields of one object, and others with their neutral values (see the module)."""

    harmless: Mapping[str, IgnoredField] = field(default_factory=dict)
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def drop_inert_fields(values: Mapping[str, Any], others: InertFields, where: str) -> dict[str, Any]:
    """Return ``values`` without fields that have no effect; raise ``ApiError`` for invalid ones.

    ``where`` is the path of ``values`` in the body.
    """
    kept = {}
    for name, value in values.items():
        if name in others.harmless:
            harmless = others.harmless[name]
            if value is not None and not harmless.holds(value):
                path = _path(where, name)
                raise invalid(path, f"{path} must be {harmless.expected}", code="invalid_type")
            if harmless.is_kept:
                kept[name] = value
        elif name not in others.neutral:
            kept[name] = value
        elif not any(_is_same(value, each) for each in others.neutral[name]):
            allowed = " or ".join(
                msgspec.json.encode(each).decode() for each in others.neutral[name]
            )
            path = _path(where, name)
            raise invalid(
                path,
                f"{path} is not supported: omit it, or set it to {allowed}",
                code="unsupported_parameter",
            )
    return kept


def drop_inert_fields_of(
    owner: dict[str, Any], name: str, others: InertFields, where: str = ""
) -> None:
    """Remove the fields without effect from ``owner[name]``, if that is an object."""
    value = owner.get(name)
    if isinstance(value, dict):
        owner[name] = drop_inert_fields(value, others, _path(where, name))


def change_items(
    owner: dict[str, Any],
    name: str,
    change: Callable[[dict[str, Any], str], dict[str, Any]],
    where: str = "",
) -> None:
    """Replace each object in ``owner[name]``, if that is a list, with ``change(object, path)``.

    ``where`` is the path of ``owner`` in the body.
    """
    items = owner.get(name)
    if isinstance(items, list):
        owner[name] = [
            change(item, f"{_path(where, name)}[{index}]") if isinstance(item, dict) else item
            for index, item in enumerate(items)
        ]


def drop_inert_fields_of_items(
    owner: dict[str, Any], name: str, others: InertFields, where: str = ""
) -> None:
    """Remove the fields without effect from the objects in the list ``name`` of ``owner``."""
    change_items(owner, name, lambda item, at: drop_inert_fields(item, others, at), where)


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other  # True is not 1, and 1.0 is not either
