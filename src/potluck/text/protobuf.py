"""Reading messages in the protocol buffers' wire format, field by field.

No schema and no generated code: a message's reader knows the numbers of its fields
(https://protobuf.dev/programming-guides/encoding/). Nothing is copied but what the caller copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | memoryview
"""Of a field: a number, or the bytes of a text, of an inner message or of a fixed-width number."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def message_fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of ``message``, in the order of the file.

    Raises ``ValueError`` if it is malformed.
    """
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            length, position = _varint(message, position)
        elif kind == _FIXED32:
            length = 4
        elif kind == _FIXED64:
            length = 8
        else:
            raise ValueError(f"a protocol buffer has a field of the wire type {kind}")
        if length > end - position:
            raise ValueError("a protocol buffer ends within a field")
        yield key >> 3, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """The number at ``position``, and where it ends."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(message):
            raise ValueError("a protocol buffer ends within a number")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a protocol buffer has a number of over ten bytes")
