"""Build the grammar that an answer must match from the fields of a request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from potluck import grammars
from potluck.api.errors import invalid
from potluck.errors import ParameterError

MAX_CHOICES = 1000


def schema_grammar(schema: object, where: str) -> str:
    """Return the grammar of a JSON schema, given as an object or a string. Raises ``ApiError``."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise invalid(where, f"{where} is a string, not a JSON object") from error
    if isinstance(schema, bool | Mapping):
        try:
            return grammars.json_schema(schema)
        except ParameterError as error:
            raise invalid(where, error.message) from error
    raise invalid(where, f"{where} must be a JSON schema: an object")


def written_grammar(source: str, where: str) -> str:
    """Return a grammar given in Lark or GBNF. Raises ``ApiError``."""
    try:
        return grammars.ebnf(source)
    except ParameterError as error:
        raise invalid(where, error.message) from error


def choice_grammar(choices: Sequence[str], where: str) -> str:
    """Return the grammar that matches exactly these texts. Raises ``ApiError``."""
    if not 1 <= len(choices) <= MAX_CHOICES:
        raise invalid(where, f"{where} has {len(choices)} texts; it must have 1 to {MAX_CHOICES}")
    return grammars.choice(choices)


def only_one(given: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the single grammar in ``given``, with its field. Raises ``ApiError`` if there are
    several.
    """
    if len(given) > 1:
        names = " and ".join(given)
        raise invalid(next(iter(given)), f"{names} cannot be used together: set only one")
    return next(iter(given.items()), None)
