"""The values of a GGUF header, which are skipped with every length checked, and read later.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A tokenizer's
300,000 strings would take 25 MB of memory, and only a gateway needs them. So only numbers are held
in memory; for texts and arrays, only their location is. Skipping so many strings must take only a
fraction of a second on a small board, hence the special loop for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from potluck.errors import ModelFileError
from potluck.formats.files import ByteFile, quoted, read_bytes, read_pieces

MAX_HEADER_BYTES = 128 * 2**20
"""The maximum size of a header. The largest known vocabularies (262,144 tokens and their merges,
plus the tokenizer's JSON file) take under 60 MiB. It bounds time, not memory."""

MAX_METADATA_ENTRIES = 2**12
"""The maximum number of entries. Files have about 40; at 200 bytes each, this many take 0.8 MB."""

MAX_KEY_BYTES = 2**16 - 1
"""The limit in the specification."""

MAX_TEXT_BYTES = 2**20
"""The maximum size of a text that is read. The longest ones, chat templates, have up to 100 KB;
texts that are not read (such as a whole ``tokenizer.json``) may be larger."""

MAX_STRINGS = 2**21
"""The maximum number of strings in all arrays of a header: three times that of the largest known
vocabulary (262,144 tokens and 514,906 merges). Skipping them takes 0.2 s."""

HEADER_WINDOW_BYTES = 2**16
"""The bytes read at a time; as many may be read beyond the end of a header."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

_BOOL, _STRING, _ARRAY = 7, 8, 9
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: _U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<?"),
    10: _U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL_BYTES = b"\0\1"


class HeaderReader:
    """Reads a header forwards, from byte ``start``. Holds one 64 KiB window of the file.

    Every method raises ``ModelFileError`` if the header would extend past the end of the file or
    past ``MAX_HEADER_BYTES``; nothing is allocated before this check. ``what`` describes the item
    being read, for messages.
    """

    def __init__(self, file: ByteFile, start: int = 0) -> None:
        self._file = file
        self._limit = min(file.size, MAX_HEADER_BYTES)
        self._num_strings = 0
        self._window_start = start
        self._window = b""
        self._index = 0

    @property
    def position(self) -> int:
        """The offset in the file of the next byte to read."""
        return self._window_start + self._index

    def take(self, num_bytes: int, what: str) -> bytes:
        """Return the next bytes, at most ``MAX_TEXT_BYTES``."""
        self.require(1, num_bytes, what)
        end = self._index + num_bytes
        if end > len(self._window):
            if num_bytes > HEADER_WINDOW_BYTES:
                data = read_bytes(self._file, self.position, num_bytes)
                self._move_to(self.position + num_bytes)
                return data
            self._fill()
            end = num_bytes
        data = self._window[self._index : end]
        self._index = end
        return data

    def skip(self, count: int, each_bytes: int, what: str) -> None:
        """Skip ``count`` items of ``each_bytes`` each."""
        self.require(count, each_bytes, what)
        self._index += count * each_bytes  # may be beyond the window

    def require(self, count: int, least_bytes: int, what: str) -> None:
        """Raise an error unless ``count`` items of at least ``least_bytes`` each can follow."""
        needed = self.position + count * least_bytes
        if needed <= self._limit:
            return
        if self._limit < self._file.size:
            problem = f"{what} makes the header larger than {MAX_HEADER_BYTES} bytes"
        else:
            problem = f"truncated or corrupt: {what} ends at byte {needed}, the file at byte "
            problem += f"{self._file.size}"
        raise ModelFileError(self._file.path, problem)

    def u32(self, what: str) -> int:
        """Read an unsigned integer of 4 bytes."""
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """Read an unsigned integer of 8 bytes."""
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def name(self, what: str, max_bytes: int) -> str:
        """Read a key or a tensor's name, which must be ASCII."""
        length = self.u64(what)
        if length > max_bytes:
            raise ModelFileError(self._file.path, f"{what} would have {length} bytes")
        data = self.take(length, what)
        try:
            return data.decode("ascii")
        except UnicodeDecodeError as error:
            raise ModelFileError(self._file.path, f"{what} is not ASCII") from error

    def scalar(self, type_number: int, what: str) -> int | float | bool:
        """Read a number or a Boolean of the type with this number."""
        form = _SCALARS.get(type_number)
        if form is None:
            raise ModelFileError(self._file.path, f"{what} has the unknown type {type_number}")
        data = self.take(form.size, what)
        if type_number == _BOOL and data[0] not in _BOOL_BYTES:
            raise ModelFileError(self._file.path, f"{what} is neither true nor false")
        value: int | float | bool = form.unpack(data)[0]
        return value

    def skip_array(self, what: str) -> MetadataArray:
        """Skip an array, checking all of it."""
        type_number, count = self.u32(what), self.u64(what)
        start = self.position
        if type_number == _STRING:
            self.require(count, _U64.size, what)
            self._skip_strings(count, what)
        elif type_number in _SCALARS:
            self.require(count, _SCALARS[type_number].size, what)
            if type_number == _BOOL:
                self._check_bools(count, what)
            self.skip(count, _SCALARS[type_number].size, what)
        else:
            raise ModelFileError(
                self._file.path, f"{what} is an array of unknown type {type_number}"
            )
        return MetadataArray(
            file=self._file, key=what, type_number=type_number, count=count, offset=start
        )

    def strings(self, count: int, what: str) -> Iterator[str]:
        """Yield ``count`` strings, without a call for each one that is within the window."""
        unpack = _U64.unpack_from
        for index in range(count):
            start = self._index + 8
            if start <= len(self._window):
                end = start + unpack(self._window, self._index)[0]
                if end <= len(self._window):
                    self._index = end
                    yield self._window[start:end].decode("utf-8", "surrogateescape")
                    continue
            yield self.text(self.u64(what), f"{what}[{index}]")

    def text(self, num_bytes: int, what: str) -> str:
        """Read a text of ``num_bytes``. Bytes that are not UTF-8 become lone surrogates."""
        if num_bytes > MAX_TEXT_BYTES:
            raise ModelFileError(
                self._file.path,
                f"{what} has {num_bytes} bytes; the limit is {MAX_TEXT_BYTES}",
            )
        return self.take(num_bytes, what).decode("utf-8", "surrogateescape")

    def _skip_strings(self, count: int, what: str) -> None:
        self._num_strings += count
        if self._num_strings > MAX_STRINGS:
            raise ModelFileError(
                self._file.path, f"{what}: the header has more than {MAX_STRINGS} strings"
            )
        unpack = _U64.unpack_from
        window, index, last = self._window, self._index, len(self._window) - _U64.size
        for _ in range(count):
            if index > last:
                self._index = index
                self.require(1, _U64.size, what)
                self._fill()
                window, index, last = self._window, 0, len(self._window) - _U64.size
            index += _U64.size + unpack(window, index)[0]
        self._index = index
        self.require(0, 0, what)

    def _check_bools(self, count: int, what: str) -> None:
        for start in range(self.position, self.position + count, HEADER_WINDOW_BYTES):
            length = min(HEADER_WINDOW_BYTES, self.position + count - start)
            if read_bytes(self._file, start, length).strip(_BOOL_BYTES):
                raise ModelFileError(self._file.path, f"{what} is neither true nor false")

    def _fill(self) -> None:
        """Read the window that starts at ``position``, which is within the header."""
        self._move_to(self.position)
        length = min(HEADER_WINDOW_BYTES, self._limit - self._window_start)
        self._window = read_bytes(self._file, self._window_start, length)

    def _move_to(self, start: int) -> None:
        self._window_start, self._window, self._index = start, b"", 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetadataArray:
    """The values of an array, which are read from the open file on each iteration.

    Iteration raises ``ModelFileError`` if a string exceeds ``MAX_TEXT_BYTES`` or the file has
    changed, and ``ValueError`` if it is closed.
    """

    file: ByteFile
    key: str
    type_number: int
    count: int
    offset: int

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int | float | bool | str]:
        reader = HeaderReader(self.file, self.offset)
        if self.type_number == _STRING:
            return reader.strings(self.count, self.key)
        return (reader.scalar(self.type_number, self.key) for _ in range(self.count))

    def __repr__(self) -> str:
        return f"an array of {self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """The location of a text."""

    offset: int
    num_bytes: int


MetadataValue: TypeAlias = "int | float | bool | str | MetadataArray"
"""A value of the metadata. Bytes of a string that are not UTF-8 become lone surrogates
(``surrogateescape``), so that no data is lost and decoding never fails."""


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of an open file. Getting a text reads it from the file.

    This raises the errors of ``MetadataArray``.
    """

    def __init__(
        self,
        file: ByteFile,
        values: Mapping[str, int | float | bool | _Text | MetadataArray],
        extents: Mapping[str, tuple[int, int]],
    ) -> None:
        self._file = file
        self._values = values
        self._extents = extents

    def __getitem__(self, key: str) -> MetadataValue:
        value = self._values[key]
        if not isinstance(value, _Text):
            return value
        reader = HeaderReader(self._file, value.offset)
        return reader.text(value.num_bytes, f"metadata {quoted(key)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def stored_bytes(self, key: str) -> Iterator[bytes]:
        """Return a value with its type as stored in the file, in pieces of at most 1 MiB."""
        return read_pieces(self._file, *self._extents[key])


def read_metadata(file: ByteFile, reader: HeaderReader, count: int) -> Metadata:
    """Read and check the next ``count`` keys and values. Raise ``ModelFileError`` if invalid."""
    if count > MAX_METADATA_ENTRIES:
        raise ModelFileError(file.path, f"it would have {count} metadata entries")
    values: dict[str, int | float | bool | _Text | MetadataArray] = {}
    extents: dict[str, tuple[int, int]] = {}
    for index in range(count):
        key = reader.name(f"metadata key {index}", MAX_KEY_BYTES)
        what = f"metadata {quoted(key)}"
        if key in values:
            raise ModelFileError(file.path, f"{what} occurs twice")
        start = reader.position
        type_number = reader.u32(what)
        if type_number == _STRING:
            num_bytes = reader.u64(what)
            values[key] = _Text(offset=reader.position, num_bytes=num_bytes)
            reader.skip(1, num_bytes, what)
        elif type_number == _ARRAY:
            values[key] = reader.skip_array(what)
        else:
            values[key] = reader.scalar(type_number, what)
        extents[key] = (start, reader.position)
    return Metadata(file, values, extents)
