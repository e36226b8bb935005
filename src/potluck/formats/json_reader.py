"""Read JSON objects member by member, through a window of text.

A parsed document may take up to thirty times the size of its text (an empty list is three bytes of
text and 64 of memory). So only one member is parsed at a time, and it must fit into the window,
which bounds the memory for any file. The text must be JSON (RFC 8259) in UTF-8; ``JsonReader``
refuses ``NaN`` and infinities, which ``read_json`` accepts, as Python's parser does.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from potluck.errors import ModelFileError
from potluck.formats.files import ByteFile, ReadOnlyFile, quoted, read_bytes

WINDOW_BYTES = 2**15
"""The bytes read at a time. A tensor's entry takes a few hundred bytes. A value that is not skipped
may take up to this size, and is refused at twice this size. When parsed, the worst text of two
windows takes 1.5 MB."""

_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_LONGEST_ESCAPE = len(r"\uffff")


class JsonReader:
    """Reads the text in bytes ``[start, end)`` of ``file`` forwards.

    ``what`` names the whole text in messages. Every method raises ``ModelFileError`` if the text is
    not valid JSON, or not of the type that the method reads.
    """

    def __init__(self, file: ByteFile, start: int, end: int, *, what: str) -> None:
        self._file = file
        self._what = what
        self._next = start
        self._end = end
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._index = 0

    def keys(self, most: int, what: str) -> Iterator[str]:
        """Yield the keys of the next object; the caller must read each value before the next key.

        Repeated keys are yielded repeatedly. More than ``most`` keys are refused. ``what`` names
        the object in messages.
        """
        for _ in self._members(most, what):
            key = self.text()
            self._expect(":")
            yield key

    def value(self) -> object:
        """Read the next value, in which keys must not repeat."""
        self._peek()
        # Fill the window first: a number that is cut off at its end would look like a shorter one.
        while len(self._text) - self._index < WINDOW_BYTES and self._read_more():
            pass
        try:
            value, self._index = _PARSER.raw_decode(self._text, self._index)
        except _RepeatedKeyError as error:
            problem = f"{self._what} has {quoted(error.key)} twice"
            raise ModelFileError(self._file.path, problem) from error
        except (ValueError, RecursionError) as error:
            self._fail(error)
        return value

    def text(self) -> str:
        """Read the next text."""
        if self._peek() != '"':
            self._fail()
        value = self.value()
        if not isinstance(value, str):
            self._fail()
        return value

    def skip_texts(self, most: int, what: str) -> None:
        """Skip the next object, whose values are texts; see ``keys``.

        The texts may have any length.
        """
        for _ in self._members(most, what):
            self._skip_text(what)
            self._expect(":")
            self._skip_text(what)

    def finish(self) -> None:
        """Raise an error unless only whitespace is left."""
        if self._peek():
            self._fail()

    def _members(self, most: int, what: str) -> Iterator[None]:
        """Yield before each member of the next object, which the caller reads; see ``keys``."""
        if self._peek() not in ("{", ""):
            raise ModelFileError(self._file.path, f"{what} is not a JSON object")
        self._expect("{")
        if self._peek() == "}":
            self._index += 1
            return
        for _ in range(most):
            yield
            if self._expect(",}") == "}":
                return
        raise ModelFileError(self._file.path, f"{what} has more than {most} entries")

    def _skip_text(self, what: str) -> None:
        if self._peek() not in ('"', ""):
            raise ModelFileError(self._file.path, f"{what} is not an object of strings")
        self._expect('"')
        while True:
            self._index = _end(_TEXT, self._text, self._index)
            left = len(self._text) - self._index
            if left and self._text[self._index] == '"':
                self._index += 1
                return
            # The end of the window may cut off an escape.
            if left >= _LONGEST_ESCAPE or not self._read_more():
                self._fail()

    def _expect(self, characters: str) -> str:
        """Read the next character other than whitespace, which must be one of ``characters``."""
        character = self._peek()
        if not character or character not in characters:
            self._fail()
        self._index += 1
        return character

    def _peek(self) -> str:
        """Return the next character other than whitespace without reading it; empty at the end."""
        while True:
            character = self._text[self._index : self._index + 1]
            if character and character not in _SPACES:
                return character
            self._index = _end(_SPACE, self._text, self._index)
            if self._index == len(self._text) and not self._read_more():
                return ""

    def _read_more(self) -> bool:
        """Move the window forward, keeping unread text. Return False if there is no more text."""
        if self._next == self._end:
            return False
        length = min(WINDOW_BYTES, self._end - self._next)
        data = read_bytes(self._file, self._next, length)
        self._next += length
        try:
            text = self._decoder.decode(data, final=self._next == self._end)
        except UnicodeDecodeError as error:
            self._fail(error)
        self._text = self._text[self._index :] + text
        self._index = 0
        return True

    def _fail(self, cause: Exception | None = None) -> NoReturn:
        raise ModelFileError(self._file.path, f"{self._what} is not valid JSON") from cause


def read_document(path: Path, max_bytes: int) -> dict[str, object]:
    """Read a small file that contains a JSON object; otherwise like ``read_json``."""
    document = read_json(path, max_bytes)
    if not isinstance(document, dict):
        raise ModelFileError(str(path), "not a JSON object")
    return document


def read_json(path: Path, max_bytes: int) -> object:
    """Read a small file that contains a JSON value, in which keys must not repeat.

    The value takes up to thirty times ``max_bytes`` of memory. Raise ``ModelNotFoundError``, and
    ``ModelFileError`` if the file is larger, cannot be read, or is not valid.
    """
    with closing(ReadOnlyFile(path)) as file:
        if file.size > max_bytes:
            raise ModelFileError(file.path, f"larger than {max_bytes} bytes")
        data = read_bytes(file, 0, file.size)
    try:
        document: object = json.loads(data, object_pairs_hook=_unique)
    except _RepeatedKeyError as error:
        raise ModelFileError(file.path, f"has {quoted(error.key)} twice") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(file.path, f"not a JSON document: {error}") from error
    return document


class _RepeatedKeyError(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise _RepeatedKeyError(key)
        values[key] = value
    return values


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


_PARSER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    """Return the end of the match of a pattern that always matches."""
    match = pattern.match(text, start)
    return match.end() if match else start
