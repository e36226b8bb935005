"""The values of a GGUF header, read forwards with every length bounded.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A tokenizer's
300,000 strings must be read in a fraction of a second on a small board, hence the two ways of
reading a string below.
"""

from __future__ import annotations

import struct
from array import array
from typing import TypeAlias

from potluck.errors import ModelFileError
from potluck.formats.files import ReadableFile, quoted

MAX_HEADER_BYTES = 128 * 2**20
"""All of the header. The largest vocabularies known (262,144 tokens and their merges, with the
tokenizer's JSON file besides) take under 60 MiB."""

MAX_METADATA_ENTRIES = 2**16
MAX_NAME_BYTES = 2**16 - 1
"""Of a key, and of a tensor's name: the specification's bound for keys."""

MAX_ARRAY_DEPTH = 4
"""Arrays of arrays; no key in use has them."""

MetadataValue: TypeAlias = "int | float | bool | str | array[int] | array[float] | list[object]"
"""Numeric arrays are ``array.array``; arrays of strings, bools and arrays are lists.

Bytes of a string that are not UTF-8 become lone surrogates (``surrogateescape``), so that nothing
is lost and nothing fails."""

_WINDOW_BYTES = 2**20
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_BOOL, _STRING, _ARRAY = 7, 8, 9
# By value type; the letters are the type codes of ``array`` too.
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
# The fewest bytes that a value of a type can take.
_LEAST_BYTES = {number: scalar.size for number, scalar in _SCALARS.items()} | {
    _STRING: _U64.size,
    _ARRAY: _U32.size + _U64.size,
}


class HeaderReader:
    """Reads a header forwards from byte 0. Holds one window of the file, of 1 MiB.

    Every method raises ``ModelFileError`` when the header would go on past the end of the file or
    past ``MAX_HEADER_BYTES``; nothing is allocated before that is known.
    """

    def __init__(self, file: ReadableFile) -> None:
        self._file = file
        self._limit = min(file.size, MAX_HEADER_BYTES)
        self._window = b""
        self._window_start = 0
        self._index = 0

    @property
    def position(self) -> int:
        """The offset in the file of what is read next, in bytes."""
        return self._window_start + self._index

    def take(self, num_bytes: int, what: str) -> bytes:
        """The next bytes."""
        self.require(1, num_bytes, what)
        start = self.position
        if self._index + num_bytes > len(self._window):
            if num_bytes > _WINDOW_BYTES:
                self._move_to(start + num_bytes, b"")
                return self._file.read(start, num_bytes)
            length = min(_WINDOW_BYTES, self._limit - start)
            self._move_to(start, self._file.read(start, length))
        data = self._window[self._index : self._index + num_bytes]
        self._index += num_bytes
        return data

    def _move_to(self, start: int, window: bytes) -> None:
        self._window_start, self._window, self._index = start, window, 0

    def require(self, count: int, least_bytes: int, what: str) -> None:
        """Raise unless ``count`` things of ``least_bytes`` each can still follow."""
        needed = self.position + count * least_bytes
        if needed <= self._limit:
            return
        if self._limit < self._file.size:
            problem = f"{what} would make the header larger than {MAX_HEADER_BYTES} bytes"
        else:
            problem = f"truncated or corrupt: {what} needs bytes up to {needed}, and there are"
            problem += f" {self._file.size}"
        raise ModelFileError(self._file.path, problem)

    def u32(self, what: str) -> int:
        """An unsigned integer of 4 bytes."""
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """An unsigned integer of 8 bytes."""
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def name(self, what: str) -> str:
        """A key or a tensor's name: UTF-8 of bounded length."""
        length = self.u64(what)
        if length > MAX_NAME_BYTES:
            raise ModelFileError(self._file.path, f"{what} would have {length} bytes")
        data = self.take(length, what)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelFileError(self._file.path, f"{what} is not UTF-8") from error

    def string(self, what: str) -> str:
        """A string of any length."""
        return self.take(self.u64(what), what).decode("utf-8", "surrogateescape")

    def value(self, type_number: int, what: str, depth: int = 0) -> MetadataValue:
        """A value of a type by its number."""
        if type_number == _STRING:
            return self.string(what)
        if type_number == _ARRAY:
            return self._array(what, depth)
        scalar = _SCALARS.get(type_number)
        if scalar is None:
            raise ModelFileError(self._file.path, f"{what} has the unknown type {type_number}")
        value: int | float = scalar.unpack(self.take(scalar.size, what))[0]
        if type_number != _BOOL:
            return value
        if value not in (0, 1):
            raise ModelFileError(self._file.path, f"{what} is neither true nor false")
        return bool(value)

    def _array(self, what: str, depth: int) -> MetadataValue:
        type_number, count = self.u32(what), self.u64(what)
        least_bytes = _LEAST_BYTES.get(type_number)
        if least_bytes is None or depth == MAX_ARRAY_DEPTH:
            problem = f"{what} is an array of type {type_number} at depth {depth}"
            raise ModelFileError(self._file.path, f"{problem}, which is not known")
        self.require(count, least_bytes, what)
        if type_number == _STRING:
            return self._strings(count, what)
        if type_number in (_BOOL, _ARRAY):
            return [self.value(type_number, what, depth + 1) for _ in range(count)]
        code = _SCALARS[type_number].format[-1]
        data = self.take(count * least_bytes, what)
        return array(code, data)

    def _strings(self, count: int, what: str) -> list[object]:
        """Many strings: those that lie within the window without a call for each."""
        strings: list[object] = []
        unpack = _U64.unpack_from
        window, index, end = self._window, self._index, len(self._window)
        for _ in range(count):
            start = index + 8
            if start <= end and (stop := start + unpack(window, index)[0]) <= end:
                strings.append(window[start:stop].decode("utf-8", "surrogateescape"))
                index = stop
            else:
                self._index = index
                strings.append(self.string(what))
                window, index, end = self._window, self._index, len(self._window)
        self._index = index
        return strings


def read_metadata(reader: HeaderReader, count: int, path: str) -> dict[str, MetadataValue]:
    """The ``count`` keys and values that come next. Raises ``ModelFileError``."""
    if count > MAX_METADATA_ENTRIES:
        raise ModelFileError(path, f"it would have {count} metadata entries")
    metadata: dict[str, MetadataValue] = {}
    for index in range(count):
        key = reader.name(f"metadata key {index}")
        what = f"metadata {quoted(key)}"
        if key in metadata:
            raise ModelFileError(path, f"{what} is there twice")
        metadata[key] = reader.value(reader.u32(what), what)
    return metadata
