"""Fields that are known and do nothing here.

A *harmless* field is checked and then ignored: it says something about the request (a label,
accounting, caching, a hint for speed), and no value of it changes the answer. Every other field
that is not supported would change the answer, so it is refused, unless its value is a *neutral*
one, which asks for nothing. ``docs/http-api.md`` lists both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from potluck.api.errors import invalid

MAX_LABEL_CHARACTERS = 512
"""Of a harmless text: OpenAI's longest, a value of ``metadata``, has as many."""
MAX_LABELS = 16
MAX_LABEL_NAME_CHARACTERS = 64
"""Of ``metadata``, as in OpenAI's API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harmless:
    """What a harmless field may hold besides null, in words and as a check.

    ``is_kept``: it is read after all, where no answer depends on it.
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


LABEL = Harmless(expected=f"a text of at most {MAX_LABEL_CHARACTERS} characters", holds=_is_label)
LABELS = Harmless(expected=f"an object of at most {MAX_LABELS} short texts", holds=_are_labels)
BOOLEAN = Harmless(expected="true or false", holds=lambda value: isinstance(value, bool))
OBJECT = Harmless(expected="an object", holds=lambda value: isinstance(value, dict))
ANYTHING = Harmless(expected="anything", holds=lambda value: True)
FLAT = Harmless(expected=f"an object of at most {MAX_LABELS} short values", holds=_is_flat)


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """The fields of one object that are known and do nothing.

    ``harmless`` ones are accepted with any value of their type, because they say something about
    the request and not about the answer: labels, accounting, caching, hints for speed. ``neutral``
    ones would change the answer, and are accepted only with the values that ask for nothing.
    """

    harmless: Mapping[str, Harmless] = field(default_factory=dict)
    neutral: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


def without_others(values: Mapping[str, Any], others: Others, where: str) -> dict[str, Any]:
    """``values`` without the fields that do nothing; raises ``ApiError`` for their other values."""
    kept = {}
    for name, value in values.items():
        if name in others.harmless:
            harmless = others.harmless[name]
            if value is not None and not harmless.holds(value):
                raise invalid(
                    f"{where}{name}",
                    f"{where}{name} should be {harmless.expected}",
                    code="invalid_type",
                )
            if harmless.is_kept:
                kept[name] = value
        elif name not in others.neutral:
            kept[name] = value
        elif not any(_is_same(value, each) for each in others.neutral[name]):
            allowed = " or ".join(
                msgspec.json.encode(each).decode() for each in others.neutral[name]
            )
            raise invalid(
                f"{where}{name}",
                f"{where}{name} is not supported: leave it out, or give {allowed}",
                code="unsupported_parameter",
            )
    return kept


def _is_same(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other  # True is no 1, and 1.0 neither
