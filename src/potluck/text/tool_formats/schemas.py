"""Analyze JSON schemas of arguments, for formats that do not write arguments as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from potluck.errors import ParameterError
from potluck.text.tool_formats.stream import CallStream
from potluck.types.text import Tool

Schema = Mapping[str, object]

_MAX_BRANCHES = 256
"""Limit on the number of branches: clients write schemas, and a few nested references could produce
millions."""
_KINDS = {
    '"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null",
}  # fmt: skip
_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("nullable", "format", "$comment", "$defs", "definitions", "$schema", "$id"),
    )
)
"""Keywords that do not constrain values. ``format`` is one of them since draft 2019-09."""


def properties_of(tool: Tool) -> dict[str, Schema]:
    """Return the schemas of the arguments of ``tool``, by name."""
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {str(key): as_schema(schema) for key, schema in properties.items()}


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
