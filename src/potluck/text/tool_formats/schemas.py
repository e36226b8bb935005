"""Analyze JSON schemas of arguments, for formats that do not write arguments as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from potluck.errors import ParameterError
from potluck.grammars.build import lark_pattern
from potluck.text.tool_formats.stream import CallStream
from potluck.text.tool_formats.syntax import TEXT, LarkSource, either

Schema = Mapping[str, object]

_MAX_BRANCHES = 256
"""Limit on the number of branches: clients write schemas, and a few nested references could produce
millions."""
_KINDS = {
    '"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null",
}  # fmt: skip
_OBJECT_KEYWORDS = ("type", "properties", "required", "additionalProperties", "strict")
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("nullable", "format", "$comment", "$defs", "definitions", "$schema", "$id"),
    )
)
"""Keywords that do not constrain values. ``format`` is one of them since draft 2019-09."""


def members_of(schema: Schema, where: str) -> Iterator[tuple[str, Schema, bool]]:
    """Yield the name and the schema of each property of an object, and whether it is required.

    Raise ``ParameterError`` if ``schema`` has keywords that grammars do not enforce.
    """
    require_only(schema, _OBJECT_KEYWORDS, where)
    required = schema.get("required")
    for key, value in properties_of(schema).items():
        yield key, value, isinstance(required, Sequence) and key in required


def definitions_of(schema: Schema) -> Schema:
    """Return the parts of ``schema`` that references within it name."""
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def properties_of(schema: Schema) -> dict[str, Schema]:
    """Return the schemas of the properties of an object, by name."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(key): as_schema(value) for key, value in properties.items()}


def as_schema(value: object) -> Schema:
    """Return ``value`` if it is a schema with constraints, or an empty one otherwise."""
    return value if isinstance(value, Mapping) else {}


def branches(schema: Schema, root: Schema) -> Sequence[Schema]:
    """Return schemas such that a value matches at least one; ``root`` resolves references.

    References are replaced, and each schema has one type, or none if any is allowed. If there are
    very many, they are replaced by one that allows anything.
    """
    found: list[Schema] = []
    waiting = [schema]
    for _ in range(_MAX_BRANCHES):
        if not waiting:
            return found
        each = waiting.pop(0)
        reference = each.get("$ref")
        options = each.get("anyOf", each.get("oneOf"))
        if isinstance(reference, str):
            waiting.insert(0, _resolved(reference, root))
        elif isinstance(options, list | tuple) and options:
            waiting[:0] = [as_schema(option) for option in options]
        else:
            found += _of_one_type(each)
    return [{}]


def _of_one_type(schema: Schema) -> Iterator[Schema]:
    types = schema.get("type")
    enum = schema.get("enum")
    if isinstance(types, list | tuple):
        yield from ({**schema, "type": each} for each in types)
    elif types is None and isinstance(enum, list | tuple):
        kinds = (kind_of(json.dumps(value)) for value in enum)
        yield from ({**schema, "type": kind} for kind in dict.fromkeys(kinds))
    elif types is None and "const" in schema:
        yield {**schema, "type": kind_of(json.dumps(schema["const"]))}
    else:
        yield schema
    if schema.get("nullable") is True:
        yield {"type": "null"}


def _resolved(reference: str, root: Schema) -> Schema:
    if not reference.startswith("#"):
        return {}
    found: object = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return as_schema(found)


def types_of(schema: Schema, root: Schema) -> frozenset[str]:
    """Return the types that a value may have; empty if any is allowed."""
    types = [each.get("type") for each in branches(schema, root)]
    if not all(isinstance(each, str) for each in types):
        return frozenset()
    return frozenset("number" if each == "integer" else str(each) for each in types)


def kind_of(value_json: str) -> str:
    """Return the type of a JSON value; integers are numbers."""
    return _KINDS.get(value_json[:1], "number")


def argument_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON value that a model means by ``text``, given the allowed ``types``."""
    if types == {"string"}:
        return json.dumps(text, ensure_ascii=False)
    value = json_value(text)
    if value is None:
        return json.dumps(text, ensure_ascii=False)
    if "string" in types and kind_of(value) not in types - {"string"}:
        return json.dumps(text, ensure_ascii=False)
    return value


def json_value(text: str) -> str | None:
    """Return ``text`` as JSON, corrected if possible; None if it is not JSON."""
    stream = CallStream(())
    stream.add(text.strip() + " ")
    stream.end()
    pieces: list[str] = []
    steps = stream.value(pieces.append)
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        is_whole = stop.value and stream.position == len(text.strip())
    return "".join(pieces) if is_whole else None


def require_only(schema: Schema, keywords: Sequence[str], where: str) -> None:
    """Raise ``ParameterError`` if ``schema`` has keywords that the grammar does not enforce."""
    for keyword in schema:
        if keyword not in keywords and keyword not in _ANNOTATIONS:
            raise ParameterError(
                "tools",
                f"the schema of {where} uses {keyword}, which is not supported"
                " in this model's tool-call format",
                hint="remove it, or disable strict for this tool",
            )


_TEXT_KEYWORDS = ("type", "enum", "const", "minLength", "maxLength", "pattern")


def text_expression(lark: LarkSource, schema: Schema, close: str, where: str) -> str:
    """Return the expression of a string that matches ``schema``, followed by ``close``."""
    require_only(schema, _TEXT_KEYWORDS, where)
    if "const" in schema:
        return lark.text(f"{schema['const']}{close}")
    options = schema.get("enum")
    if isinstance(options, list | tuple):
        return either(lark.text(f"{each}{close}") for each in options if isinstance(each, str))
    return lark.until(close, text=_terminal(lark, schema, where))


def _terminal(lark: LarkSource, schema: Schema, where: str) -> str:
    patterns = []
    lengths = [schema.get("minLength", 0), schema.get("maxLength", "")]
    if lengths != [0, ""]:
        if not all(each == "" or (isinstance(each, int) and 0 <= each < 2**16) for each in lengths):
            raise ParameterError(
                "tools", f"minLength and maxLength of {where} must be from 0 to 65,535"
            )
        patterns.append(f"(?s:.{{{lengths[0]},{lengths[1]}}})")
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        before = "" if pattern.startswith("^") else "(?s:.*)"
        after = "" if re.search(r"(?<!\\)(?:\\\\)*\$$", pattern) else "(?s:.*)"
        body = pattern.removeprefix("^")
        body = body[:-1] if not after else body
        patterns.append(f"{before}(?:{body}){after}")
    if not patterns:
        return TEXT
    return lark.terminal(" & ".join(map(lark_pattern, patterns)))


def comma_separated(lark: LarkSource, items: Sequence[tuple[str, bool]], separator: str) -> str:
    """Return the expression of ``items`` in their order; each is required or optional."""
    tails = [""]  # of what may follow an item that is present
    for expression, is_required in reversed(items[1:]):
        item = f"{separator} {expression}"
        tails.insert(0, lark.rule(f"{item if is_required else f'({item})?'} {tails[0]}"))
    whole = ""
    for (expression, is_required), tail in zip(reversed(items), reversed(tails), strict=False):
        first = f"{expression} {tail}"
        if is_required:
            whole = first
        else:
            whole = lark.rule(f"{first} | {whole}" if whole else f"({first})?")
    return whole
