"""What a body may hold, checked before it is decoded.

A few megabytes of brackets decode to hundreds of megabytes of lists, in one call that keeps every
other client waiting. Counting characters takes milliseconds.
"""

from __future__ import annotations

from potluck.api.errors import ApiError

ALWAYS_DECODED_BYTES = 64 * 1024
"""Whatever such a body holds, decoding it takes milliseconds and at most 2 MiB."""

MAX_OBJECTS = 32_768
"""Lists and objects. A turn of an agent that calls a tool and reads the result is ten, and a tool
with its schema ten to fifty: this is a thousand turns with hundreds of tools."""

MAX_STRINGS = 5 * MAX_OBJECTS
"""Texts and names of fields: a message has four or five."""

MAX_VALUES = MAX_STRINGS + MAX_OBJECTS
"""Numbers and all else: a prompt of 131072 token ids, the longest common context, and some more."""

MAX_FIELDS = 1024
"""Of one object: the most biases that ``logit_bias`` may have."""


def check_amount(body: bytes | bytearray) -> None:
    """Raise ``ApiError`` (400) for a body with more values than any request needs."""
    if len(body) <= ALWAYS_DECODED_BYTES:
        return
    if (
        _num_objects(body) <= MAX_OBJECTS
        and body.count(b",") + MAX_OBJECTS <= MAX_VALUES
        and body.count(b'"') <= 2 * MAX_STRINGS
    ):
        return
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    if without_escapes.count(b'"') > 2 * MAX_STRINGS:
        raise _too_many(MAX_STRINGS, "texts and names of fields")
    outside = b"".join(without_escapes.split(b'"')[::2])
    if _num_objects(outside) > MAX_OBJECTS:
        raise _too_many(MAX_OBJECTS, "lists and objects")
    if outside.count(b",") + MAX_OBJECTS > MAX_VALUES:
        raise _too_many(MAX_VALUES, "values")


def check_fields(document: object) -> None:
    """Raise ``ApiError`` (400) if any object in ``document`` has more fields than makes sense."""
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if len(value) > MAX_FIELDS:
                raise _too_many(MAX_FIELDS, "fields in one object")
            pending += [each for each in value.values() if isinstance(each, dict | list)]
        elif isinstance(value, list):
            pending += [each for each in value if isinstance(each, dict | list)]


def _num_objects(data: bytes | bytearray) -> int:
    return data.count(b"[") + data.count(b"{")


def _too_many(limit: int, what: str) -> ApiError:
    return ApiError(400, f"the body has more than {limit} {what}", code="invalid_json")
