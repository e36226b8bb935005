"""Read messages in the protocol buffers wire format, field by field.

There is no schema and no generated code: the reader of a message knows the numbers of its fields
(https://protobuf.dev/programming-guides/encoding/). The reader copies nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

Value: TypeAlias = int | memoryview
"""The value of a field: a number, or the bytes of a text, an inner message or a fixed-width number.
"""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10


def message_fields(message: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield the number and the value of each field of ``message``, in file order.

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
            raise ValueError(f"a protocol buffer has a field of unknown wire type {kind}")
        if length > end - position:
            raise ValueError("a protocol buffer ends within a field")
        yield key >> 3, message[position : position + length]
        position += length


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and the position after it."""
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= len(message):
            raise ValueError("a protocol buffer ends within a varint")
        byte = message[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise ValueError("a protocol buffer has a varint of more than ten bytes")
