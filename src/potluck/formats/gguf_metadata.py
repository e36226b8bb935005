"""The values of a GGUF header, passed over forwards with every length bounded, and read later.

The layout is that of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. A tokenizer's
300,000 strings would take 25 MB in memory, and only a gateway wants them: numbers are held, of
texts and arrays only where they lie. Passing over so many strings must take a fraction of a second
on a small board, hence a loop of its own for them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from potluck.errors import ModelFileError
from potluck.formats.files import ByteFile, quoted, read_bytes

MAX_HEADER_BYTES = 128 * 2**20
"""All of the header. The largest vocabularies known (262,144 tokens and their merges, with the
tokenizer's JSON file besides) take under 60 MiB. Bounds time, not memory."""

MAX_METADATA_ENTRIES = 2**12
"""Files have about 40. At 200 bytes each they would take 0.8 MB here."""

MAX_KEY_BYTES = 2**16 - 1
"""The specification's bound."""

MAX_TEXT_BYTES = 2**20
"""Of a text that is read. Chat templates, the longest that are, take up to 100 KB; a text that is
not read (a whole ``tokenizer.json``, say) may take more."""

MAX_STRINGS = 2**21
"""In all arrays of a header, three times those of the largest vocabulary known (262,144 tokens and
514,906 merges). Passing over so many takes 0.2 s."""

_WINDOW_BYTES = 2**16
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
    """Reads a header forwards, from byte ``start``. Holds one window of the file, of 64 KiB.

    Every method raises ``ModelFileError`` when the header would go on past the end of the file or
    past ``MAX_HEADER_BYTES``; nothing is allocated before that is known. ``what`` is what is being
    read, for messages.
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
        """The offset in the file of what is read next, in bytes."""
        return self._window_start + self._index

    def take(self, num_bytes: int, what: str) -> bytes:
        """The next bytes, at most ``MAX_TEXT_BYTES``."""
        self.require(1, num_bytes, what)
        end = self._index + num_bytes
        if end > len(self._window):
            if num_bytes > _WINDOW_BYTES:
                data = read_bytes(self._file, self.position, num_bytes)
                self._move_to(self.position + num_bytes)
                return data
            self._fill()
            end = num_bytes
        data = self._window[self._index : end]
        self._index = end
        return data

    def skip(self, count: int, each_bytes: int, what: str) -> None:
        """Pass over ``count`` things of ``each_bytes`` each."""
        self.require(count, each_bytes, what)
        self._index += count * each_bytes  # which may lie beyond the window

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

    def name(self, what: str, max_bytes: int) -> str:
        """A key or a tensor's name, which are ASCII."""
        length = self.u64(what)
        if length > max_bytes:
            raise ModelFileError(self._file.path, f"{what} would have {length} bytes")
        data = self.take(length, what)
        try:
            return data.decode("ascii")
        except UnicodeDecodeError as error:
            raise ModelFileError(self._file.path, f"{what} is not ASCII") from error

    def scalar(self, type_number: int, what: str) -> int | float | bool:
        """A number or a truth value of a type by its number."""
        form = _SCALARS.get(type_number)
        if form is None:
            raise ModelFileError(self._file.path, f"{what} has the unknown type {type_number}")
        data = self.take(form.size, what)
        if type_number == _BOOL and data[0] not in _BOOL_BYTES:
            raise ModelFileError(self._file.path, f"{what} is neither true nor false")
        value: int | float | bool = form.unpack(data)[0]
        return value

    def skip_array(self, what: str) -> MetadataArray:
        """Pass over an array, all of it checked."""
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
                self._file.path, f"{what} is an array of type {type_number}, which is not known"
            )
        return MetadataArray(
            file=self._file, key=what, type_number=type_number, count=count, offset=start
        )

    def strings(self, count: int, what: str) -> Iterator[str]:
        """Many strings: those that lie within the window without a call for each."""
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
        """A text of so many bytes. Those that are not UTF-8 become lone surrogates."""
        if num_bytes > MAX_TEXT_BYTES:
            raise ModelFileError(
                self._file.path,
                f"{what} has {num_bytes} bytes, and at most {MAX_TEXT_BYTES} can be read",
            )
        return self.take(num_bytes, what).decode("utf-8", "surrogateescape")

    def _skip_strings(self, count: int, what: str) -> None:
        self._num_strings += count
        if self._num_strings > MAX_STRINGS:
            raise ModelFileError(
                self._file.path, f"{what}: the header would have over {MAX_STRINGS} strings"
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
        for start in range(self.position, self.position + count, _WINDOW_BYTES):
            length = min(_WINDOW_BYTES, self.position + count - start)
            if read_bytes(self._file, start, length).strip(_BOOL_BYTES):
                raise ModelFileError(self._file.path, f"{what} is neither true nor false")

    def _fill(self) -> None:
        """Read the window that begins at ``position``, which is within the header."""
        self._move_to(self.position)
        length = min(_WINDOW_BYTES, self._limit - self._window_start)
        self._window = read_bytes(self._file, self._window_start, length)

    def _move_to(self, start: int) -> None:
        self._window_start, self._window, self._index = start, b"", 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MetadataArray:
    """The values of an array, read anew from the open file whenever they are iterated over.

    Iteration raises ``ModelFileError`` for a string over ``MAX_TEXT_BYTES``, or when the file
    changed meanwhile; ``ValueError`` when it is closed.
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
    """Where a text lies."""

    offset: int
    num_bytes: int


_PIECE_BYTES = 2**20

MetadataValue: TypeAlias = "int | float | bool | str | MetadataArray"
"""Bytes of a string that are not UTF-8 become lone surrogates (``surrogateescape``), so that
nothing is lost and nothing fails."""


class Metadata(Mapping[str, MetadataValue]):
    """The metadata of an open file. Getting a text reads it from there.

    That raises as ``MetadataArray`` does.
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
        """A value with its type as it lies in the file, in pieces of at most 1 MiB."""
        start, end = self._extents[key]
        for offset in range(start, end, _PIECE_BYTES):
            yield read_bytes(self._file, offset, min(_PIECE_BYTES, end - offset))


def read_metadata(file: ByteFile, reader: HeaderReader, count: int) -> Metadata:
    """The ``count`` keys and values that come next, all checked. Raises ``ModelFileError``."""
    if count > MAX_METADATA_ENTRIES:
        raise ModelFileError(file.path, f"it would have {count} metadata entries")
    values: dict[str, int | float | bool | _Text | MetadataArray] = {}
    extents: dict[str, tuple[int, int]] = {}
    for index in range(count):
        key = reader.name(f"metadata key {index}", MAX_KEY_BYTES)
        what = f"metadata {quoted(key)}"
        if key in values:
            raise ModelFileError(file.path, f"{what} is there twice")
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
