"""JSON objects read member by member, through a window of text.

A parsed document takes up to thirty times its own bytes (an empty list is three bytes of text and
64 of memory). So only one member is ever parsed at once, and it has to fit the window: whatever a
file holds, its memory is bounded. Text is JSON as RFC 8259 has it, in UTF-8; ``NaN`` and the
infinities, which Python's parser takes too, are refused.
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
"""What is read at once. A tensor's entry takes a few hundred bytes; the longest value that is not
skipped takes at most as much, and is refused when it takes twice that. Parsed, the worst text of
two windows takes 1.5 MB."""

_SPACES = " \t\n\r"
_SPACE = re.compile(f"[{_SPACES}]*")
_TEXT = re.compile(r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
_LONGEST_ESCAPE = len(r"\uffff")


class JsonReader:
    """Reads the text in bytes ``[start, end)`` of ``file`` forwards.

    ``what`` is the whole text for messages. Every method raises ``ModelFileError`` where the text
    is not valid JSON, or not what the method reads.
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
        """The keys of the object that comes next; the value of each is read before the next key.

        A key that comes twice is given twice. More than ``most`` are refused. ``what`` is the
        object for messages.
        """
        if self._is_empty_object(what):
            return
        for _ in range(most):
            key = self.text()
            self._expect(":")
            yield key
            if self._expect(",}") == "}":
                return
        raise ModelFileError(self._file.path, f"{what} has more than {most} entries")

    def value(self) -> object:
        """The value that comes next, in which no key occurs twice."""
        self._peek()
        # Now, since a number that the end of the window cuts off looks like a shorter one.
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
        """The text that comes next."""
        if self._peek() != '"':
            self._fail()
        value = self.value()
        if not isinstance(value, str):
            self._fail()
        return value

    def skip_texts(self, most: int, what: str) -> None:
        """Pass over the object of texts that comes next, as ``keys`` reads one.

        The texts may be of any length.
        """
        if self._is_empty_object(what):
            return
        for _ in range(most):
            self._skip_text(what)
            self._expect(":")
            self._skip_text(what)
            if self._expect(",}") == "}":
                return
        raise ModelFileError(self._file.path, f"{what} has more than {most} entries")

    def finish(self) -> None:
        """Raise unless nothing but space is left."""
        if self._peek():
            self._fail()

    def _is_empty_object(self, what: str) -> bool:
        """Begin the object that comes next; True where it ends at once."""
        if self._peek() not in ("{", ""):
            raise ModelFileError(self._file.path, f"{what} is not a JSON object")
        self._expect("{")
        if self._peek() != "}":
            return False
        self._index += 1
        return True

    def _skip_text(self, what: str) -> None:
        if self._peek() not in ('"', ""):
            raise ModelFileError(self._file.path, f"{what} is not an object of texts")
        self._expect('"')
        while True:
            self._index = _end(_TEXT, self._text, self._index)
            left = len(self._text) - self._index
            if left and self._text[self._index] == '"':
                self._index += 1
                return
            # An escape may be cut off by the end of the window.
            if left >= _LONGEST_ESCAPE or not self._read_more():
                self._fail()

    def _expect(self, characters: str) -> str:
        """The next character that is no space, one of ``characters``."""
        character = self._peek()
        if not character or character not in characters:
            self._fail()
        self._index += 1
        return character

    def _peek(self) -> str:
        """As ``_expect``, any character, which stays; nothing at the end."""
        while True:
            character = self._text[self._index : self._index + 1]
            if character and character not in _SPACES:
                return character
            self._index = _end(_SPACE, self._text, self._index)
            if self._index == len(self._text) and not self._read_more():
                return ""

    def _read_more(self) -> bool:
        """Move the window on, keeping what was not read yet; False when there is nothing more."""
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
    """The JSON object that is the whole of a small file; otherwise as ``read_json``."""
    document = read_json(path, max_bytes)
    if not isinstance(document, dict):
        raise ModelFileError(str(path), "not a JSON object")
    return document


def read_json(path: Path, max_bytes: int) -> object:
    """The JSON value that is the whole of a small file, in which no key occurs twice.

    It takes up to thirty times ``max_bytes``. Raises ``ModelNotFoundError``, and ``ModelFileError``
    when the file is larger, cannot be read or holds something else.
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
    """Where the match of a pattern that always matches ends."""
    match = pattern.match(text, start)
    return match.end() if match else start
