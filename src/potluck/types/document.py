"""The types of the JSON documents that commands and the HTTP API return.

Each document is a ``Document``, declared next to the code that makes it. ``python -m
tools.reference`` writes their JSON schemas to ``docs/reference/schemas``; the string below a field
is its description there. The constraints below describe values, and are not checked: no message of
another node is refused for them.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from potluck.types.cluster import NodeId

Count = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0})]
"""A number of things, bytes or tokens, or an index."""

PositiveCount = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 1})]

Amount = Annotated[float, msgspec.Meta(extra_json_schema={"minimum": 0})]
"""A time in seconds, or a rate."""

PositiveAmount = Annotated[float, msgspec.Meta(extra_json_schema={"exclusiveMinimum": 0})]

NodeIdText = Annotated[NodeId, msgspec.Meta(extra_json_schema={"pattern": "^[0-9a-f]{16}$"})]

Tokens = Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 2})]
"""A context length or a cache size."""

Sha256Text = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": "^[0-9a-f]{64}$"})]

NonEmpty = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1})]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON document, or an object in one.

    It has all of its fields, also those with default values, unless they are ``msgspec.UNSET``.
    The constraints of its fields describe it; they are not checked.
    """


_D = TypeVar("_D", bound=Document)


def document_of(kind: type[_D], *values: object, **fields: Any) -> _D:
    """Return a document with ``fields``, and with the attributes of ``values`` as the others.

    An attribute that several values have is that of the first.
    """
    for value in values:
        fields |= {
            name: getattr(value, name)
            for name in kind.__struct_fields__
            if name not in fields and hasattr(value, name)
        }
    return kind(**fields)
