"""Convert clients' grammars to the form that is sent with a request.

That form is a JSON text ``{"grammars": [{"name": ..., "lark_grammar": ...}, ...]}``; the first
grammar is the start, and others are referred to as ``@name``. Lark means llguidance's dialect
(https://github.com/guidance-ai/llguidance/blob/v1.6.0/docs/syntax.md).

Nothing is compiled here: ``check.GrammarChecker`` checks whether a grammar can be used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from potluck.errors import ParameterError

OPTIONS = '%llguidance {"no_forcing": true}\n'
"""The beginning of every start grammar, with which the model chooses the tokens of forced text.

Otherwise llguidance would choose them, with a tokenizer that the last stage does not have.
"""

_JSON_OPTIONS = {
    "whitespace_flexible": False,
    "key_separator": ":[ ]?",
    "item_separator": ",([ ]|\\n[ ]{0,20})?",
}
"""Whitespace is bounded, because small models tend to continue it forever."""

CONTROL = b"\xff"
"""The byte before the name of a control token. No text contains it, so no text matches a control
token (llguidance's ``TokTrie::SPECIAL_TOKEN_MARKER``)."""

END = CONTROL + b"<end of text>"
"""A control token that no grammar can name, because of its spaces. The library fails with an
obscure error if there are no control tokens."""

_MAX_INTEGER = 10**15 - 1
"""The bound of integers that a schema does not bound: small models tend to write digits forever,
and most JSON parsers do not represent integers above 2^53 exactly.
"""

_MAX_GBNF_CHARACTERS = 64 * 1024
"""The maximum size of GBNF, since the time to convert it grows with the square of its number of
rules: 1.5 s for this size."""

_SCHEMA_KEYS = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else")
_SCHEMA_LIST_KEYS = ("prefixItems", "anyOf", "oneOf", "allOf", "items")
_SCHEMA_MAP_KEYS = ("properties", "patternProperties", "$defs", "definitions")
"""The keys under which a schema contains other schemas: as a value, in a list, in an object."""

_COMPOSING_KEYS = frozenset(
    ("allOf", "not", "if", "dependentSchemas", "dependencies", "unevaluatedProperties")
)
_OPEN_KEYS = frozenset(
    (
        *("additionalProperties", "patternProperties", "propertyNames", "minProperties"),
        *("dependentRequired", "anyOf", "oneOf", "$ref", "enum", "const"),
    )
)
"""With the first kind anywhere, or with the second kind next to ``properties``, an object may need
properties that are listed elsewhere."""

_START = "start"
_BODY = "body"
_NAMED = re.compile(r"<[^<>\s\[][^<>\s]*>")
_GBNF_RULE = re.compile(r"(?m)^[^\S\n]*[\w-]+\s*::=")
_LARK_REFERENCE = re.compile(r"\"(?:\\.|[^\"\\])*\"|/(?:\\.|[^/\\\n])+/|@([\w-]+)|\\.")
"""Also matches literals and escapes, in which there is no reference. Neither of the two takes more
than linear time: clients write grammars, and matching blocks all other threads."""


class LibraryTokens:
    """A list of tokens that ends with ``END``, as a ``llguidance.TokenizerWrapper``."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: tuple[int, ...] = ()

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens = tokens
        self.eos_token_id = len(tokens) - 1

    def __call__(self, text: str) -> list[int]:
        """Raise an error: this is never called, because grammars here force no tokens."""
        raise NotImplementedError(
            f"grammars must not force tokens, but {text!r} had to be tokenized"
        )


def json_schema(schema: Mapping[str, object] | bool) -> str:
    """Return the grammar of the JSON documents that ``schema`` allows.

    Properties are in the order in which the schema lists them. Whitespace is bounded, integers that
    the schema does not bound have up to 15 digits, and objects have only the properties that their
    schema lists, unless it explicitly allows others. Raise ``ParameterError`` if the schema is
    nested too deeply.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"allOf": [False]}
    try:
        bounded = _with_bounds(schema)
        if not _is_composed(bounded):
            bounded = _closed(bounded)
        start = {"name": _START, "lark_grammar": f"{OPTIONS}start: @{_BODY}\n"}
        document = {**bounded, "x-guidance": _JSON_OPTIONS}
        return _dump(start, {"name": _BODY, "json_schema": document})
    except RecursionError as error:
        raise ParameterError("schema", "the JSON schema is nested too deeply") from error


def json_object() -> str:
    """Return the grammar of all JSON objects."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    """Return the grammar of the texts that ``pattern`` matches as a whole.

    The syntax is that of Rust's ``regex``, which supports neither look-around nor back-references.
    """
    return lark(f"start: {lark_pattern(pattern)}\n")


def choice(texts: Sequence[str]) -> str:
    """Return the grammar of exactly these texts. Raise ``ParameterError`` if there are none."""
    if not texts:
        raise ParameterError("choice", "there are no choices", hint="provide at least one choice")
    return lark("start: " + " | ".join(literal(text) for text in dict.fromkeys(texts)) + "\n")


def lark(source: str) -> str:
    """Return the grammar with the Lark source ``source``, whose first rule is ``start``."""
    return combined(source, {})


def ebnf(source: str) -> str:
    """Return the grammar for a client's Lark or GBNF (llama.cpp's EBNF) source.

    Raise ``ParameterError`` if GBNF is malformed.
    """
    if not _GBNF_RULE.search(source):
        return lark(source)
    if len(source) > _MAX_GBNF_CHARACTERS:
        raise ParameterError(
            "grammar",
            f"the grammar has {len(source):,} characters",
            hint=f"the limit for GBNF is {_MAX_GBNF_CHARACTERS:,}; Lark grammars can be longer",
        )
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return lark(gbnf_to_lark(source))
    except RecursionError as error:
        raise ParameterError("grammar", "the grammar is nested too deeply") from error
    except Exception as error:  # the converter raises no specific exceptions
        raise ParameterError(
            "grammar",
            f"the grammar is not valid GBNF: {error}",
            hint="GBNF grammars start with a rule root ::= ..., Lark grammars with start: ...",
        ) from error


def combined(source: str, parts: Mapping[str, str]) -> str:
    """Return the grammar with the Lark source ``source``, in which ``@name`` is ``parts[name]``.

    The parts are grammars returned by this module.
    """
    grammars: list[dict[str, object]] = [{"name": _START, "lark_grammar": OPTIONS + source}]
    for name, part in parts.items():
        inner = json.loads(part)["grammars"]
        prefix = f"{name}_"
        names = {each["name"]: prefix + each["name"] for each in inner[1:]}
        names[inner[0]["name"]] = name
        grammars += [_renamed(each, names) for each in inner]
    return _dump(*grammars)


def literal(text: str) -> str:
    """Return ``text`` as a literal in a Lark source."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def lark_pattern(pattern: str) -> str:
    """Return a regular expression as a terminal in a Lark source."""
    escaped = re.sub(r"\\.|/", _escaped_slash, pattern, flags=re.DOTALL).replace("\n", "\\n")
    return f"/{escaped}/"


def control_token(text: str) -> str:
    """Return the reference to the control token with this text in a Lark source.

    It is allowed in rules, but not in terminals. If the text of a control token is written as a
    literal, it matches other tokens, never the control token.
    """
    return text if _NAMED.fullmatch(text) else f"<|{text}|>"


def _mapped(
    schema: Mapping[str, object], change: Callable[[Mapping[str, object]], object]
) -> dict[str, object]:
    """Return ``schema`` with ``change`` applied to each schema that it contains directly."""
    mapped: dict[str, object] = {}
    for key, value in schema.items():
        if key in _SCHEMA_MAP_KEYS and isinstance(value, Mapping):
            mapped[key] = {
                name: change(each) if isinstance(each, Mapping) else each
                for name, each in value.items()
            }
        elif key in _SCHEMA_LIST_KEYS and isinstance(value, list):
            mapped[key] = [change(each) if isinstance(each, Mapping) else each for each in value]
        elif key in _SCHEMA_KEYS and isinstance(value, Mapping):
            mapped[key] = change(value)
        else:
            mapped[key] = value
    return mapped


def _with_bounds(schema: Mapping[str, object]) -> dict[str, object]:
    bounded = _mapped(schema, _with_bounds)
    types = schema.get("type")
    types = types if isinstance(types, list) else [types]
    if "integer" in types and "number" not in types:
        if "minimum" not in schema and "exclusiveMinimum" not in schema:
            bounded["minimum"] = -_MAX_INTEGER
        if "maximum" not in schema and "exclusiveMaximum" not in schema:
            bounded["maximum"] = _MAX_INTEGER
    return bounded


def _is_composed(value: object) -> bool:
    """Return whether an object's properties may be listed in several places of the schema."""
    if isinstance(value, Mapping):
        if not _COMPOSING_KEYS.isdisjoint(value):
            return True
        if "properties" in value and not {"anyOf", "oneOf", "$ref"}.isdisjoint(value):
            return True
        return any(map(_is_composed, value.values()))
    return isinstance(value, list) and any(map(_is_composed, value))


def _closed(schema: Mapping[str, object]) -> dict[str, object]:
    """Return ``schema`` with objects restricted to the properties that it lists.

    JSON schema allows additional properties by default, and a small model that may write them
    hardly ever ends. llama.cpp and vLLM interpret schemas in the same way.
    """
    closed = _mapped(schema, _closed)
    properties, required = schema.get("properties"), schema.get("required", [])
    if (
        isinstance(properties, Mapping)
        and isinstance(required, list)
        and all(isinstance(name, str) and name in properties for name in required)
        and _OPEN_KEYS.isdisjoint(schema)
    ):
        closed["additionalProperties"] = False
    return closed


def require_own_form(grammar: str, parameter: str = "grammar") -> None:
    """Raise ``ParameterError`` unless ``grammar`` is in the form that this module returns."""
    try:
        source = json.loads(grammar)["grammars"][0]["lark_grammar"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ParameterError(parameter, "the grammar is not in its serialized form") from error
    if not (isinstance(source, str) and source.startswith(OPTIONS)):
        raise ParameterError(parameter, "the grammar is not in its serialized form")


def _renamed(grammar: Mapping[str, object], names: Mapping[str, str]) -> dict[str, object]:
    renamed = {**grammar, "name": names[str(grammar["name"])]}
    source = grammar.get("lark_grammar")
    if isinstance(source, str):
        renamed["lark_grammar"] = _LARK_REFERENCE.sub(
            lambda match: f"@{names.get(match[1], match[1])}" if match[1] else match[0],
            source.removeprefix(OPTIONS),
        )
    return renamed


def _escaped_slash(match: re.Match[str]) -> str:
    return "\\/" if match[0] == "/" else match[0]


def _dump(*grammars: Mapping[str, object]) -> str:
    return json.dumps({"grammars": grammars}, ensure_ascii=False, separators=(",", ":"))
