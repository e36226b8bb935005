"""Limits on the number of JSON values in a body, checked before it is decoded.

A few megabytes of brackets decode to hundreds of megabytes of lists, in a single call that blocks
all other clients. Counting characters takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator

from potluck.api.errors import ApiError
from potluck.types.text import levels_of

ALWAYS_DECODED_BYTES = 64 * 1024
"""Bodies up to this size are not checked: decoding one takes milliseconds and at most 2 MiB."""

MAX_OBJECTS = 32_768
"""Maximum number of lists and objects. One agent turn that calls a tool and reads the result has
ten, and the schema of a tool ten to fifty, so this allows a thousand turns with hundreds of tools.
"""

MAX_STRINGS = 5 * MAX_OBJECTS
"""Maximum number of strings, including field names. A message has four or five."""

MAX_VALUES = MAX_STRINGS + MAX_OBJECTS
"""Maximum number of other values, such as numbers: a prompt of 131072 token ids (the longest common
context) and some more."""

_PIECE_BYTES = 256 * 1024
"""Size of the pieces to scan. One takes at most 2 ms; scanning a whole body at once would block all
other threads for 50 ms."""

MAX_FIELDS = 1024
"""Maximum number of fields in one object: the most biases that ``logit_bias`` allows."""

MAX_LEVELS = 512
"""Maximum number of levels of nesting: half of what Python's stack allows. Schemas have tens."""


def check_amount(body: bytes | bytearray) -> None:
    """Raise ``ApiError`` (400) if a body has more values than any legitimate request."""
    if len(body) <= ALWAYS_DECODED_BYTES:
        return
    if (
        _num_objects(body) <= MAX_OBJECTS
        and body.count(b",") + MAX_OBJECTS <= MAX_VALUES
        and body.count(b'"') <= 2 * MAX_STRINGS
    ):
        return
    quotes = objects = values = 0
    is_inside = False
    for piece in _pieces(body):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        quotes += len(parts) - 1
        if quotes > 2 * MAX_STRINGS:
            raise _too_many(MAX_STRINGS, "texts and names of fields")
        outside = b"".join(parts[is_inside::2])
        objects += _num_objects(outside)
        values += outside.count(b",")
        is_inside = quotes % 2 == 1
    if objects > MAX_OBJECTS:
        raise _too_many(MAX_OBJECTS, "lists and objects")
    if values + MAX_OBJECTS > MAX_VALUES:
        raise _too_many(MAX_VALUES, "values")


def check_fields(document: object) -> None:
    """Raise ``ApiError`` (400) if an object in ``document`` has too many fields, or if it is nested
    too deeply.
    """
    for num_levels, level in enumerate(levels_of(document), start=1):
        if num_levels > MAX_LEVELS:
            raise _too_many(MAX_LEVELS, "levels of nesting")
        if any(isinstance(each, dict) and len(each) > MAX_FIELDS for each in level):
            raise _too_many(MAX_FIELDS, "fields in one object")


def _pieces(body: bytes | bytearray) -> Iterator[bytes | bytearray]:
    """Yield ``body`` in pieces that end at a JSON character boundary, never inside an escape."""
    start = 0
    while start < len(body):
        piece = body[start : start + _PIECE_BYTES]
        num_backslashes = len(piece) - len(piece.rstrip(b"\\"))
        if num_backslashes % 2 and start + len(piece) < len(body):
            piece = piece[:-1]
        start += len(piece)
        yield piece


def _num_objects(data: bytes | bytearray) -> int:
    return data.count(b"[") + data.count(b"{")


def _too_many(limit: int, what: str) -> ApiError:
    return ApiError(400, f"the request body has more than {limit} {what}", code="invalid_json")
