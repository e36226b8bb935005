"""What a child prints, bounded and judged. Pure, but for the callback of its progress."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

MAX_OUTPUT_BYTES = 1 << 20
"""Far above any honest answer: a device takes about a kilobyte."""

_MAX_STDERR_BYTES = 8192
_MAX_LINE_CHARACTERS = 300
"""A reason is one line of a table or of a log."""


class Stdout:
    """Collects standard output up to a bound; lines of progress go to a callback instead."""

    def __init__(self, on_progress: Callable[[float], None] | None) -> None:
        self._on_progress = on_progress
        self._kept = bytearray()
        self._line = bytearray()  # the last one, which has no end yet
        self._num_bytes = 0

    @property
    def is_too_long(self) -> bool:
        """Whether more came than any answer takes, lines of progress included."""
        return self._num_bytes > MAX_OUTPUT_BYTES

    @property
    def data(self) -> bytes:
        """Everything but progress."""
        return bytes(self._kept + self._line)

    def take(self, data: bytes) -> None:
        """More of it. What comes after the bound is dropped."""
        self._num_bytes += len(data)
        if self.is_too_long:
            return
        *ended, rest = data.split(b"\n")
        for end in ended:
            line = bytes(self._line + end)
            self._line.clear()
            fraction = _progress(line)
            if fraction is None:
                self._kept += line + b"\n"
            elif self._on_progress is not None:
                self._on_progress(fraction)
        self._line += rest


class Tail:
    """Keeps the end of standard error."""

    def __init__(self) -> None:
        self._kept = b""

    def take(self, data: bytes) -> None:
        """More of it."""
        self._kept = (self._kept + data)[-_MAX_STDERR_BYTES:]

    @property
    def last_line(self) -> str:
        """The last line that has something on it, cleaned, or empty."""
        lines = self._kept.decode("utf-8", errors="replace").splitlines()
        return next((clean for line in reversed(lines) if (clean := one_line(line))), "")


class Status:
    """What the supervisor tells of a child (``potluck.probe.child_supervisor``)."""

    def __init__(self) -> None:
        self._told = b""

    def take(self, data: bytes) -> None:
        """More of it."""
        self._told += data

    @property
    def pid(self) -> int | None:
        """The child's, once it runs."""
        return self._number("pid")

    @property
    def returncode(self) -> int | None:
        """Its end, as ``subprocess`` has it."""
        return self._number("ended")

    @property
    def is_stuck(self) -> bool:
        """Whether it was killed in vain."""
        return b"stuck\n" in self._told

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_stuck or self.returncode is not None

    def _number(self, name: str) -> int | None:
        for line in self._told.decode("ascii").splitlines(keepends=True):
            word, _, number = line.partition(" ")
            if word == name and number.endswith("\n"):
                return int(number)
        return None


@dataclass(frozen=True, slots=True)
class Document:
    """An answer."""

    value: dict[str, object]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The child says that it cannot, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rubbish:
    """Not an answer; ``reason`` says what is wrong with it."""

    reason: str


def read_document(data: bytes) -> Document | Refusal | Rubbish:
    """What a child has printed in all. Numbers that are not finite make it rubbish."""
    if not data.strip():
        return Rubbish("printed nothing")
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return Rubbish(one_line(f"printed what is no JSON document ({error}): {_start(data)}"))
    if not isinstance(document, dict):
        return Rubbish(f"printed a JSON document that is no object: {_start(data)}")
    if "refused" not in document:
        return Document(document)
    if not isinstance(document["refused"], str):
        return Rubbish(f"refused without a reason: {_start(data)}")
    return Refusal(one_line(document["refused"]) or "refused without a reason")


def one_line(text: str) -> str:
    """``text`` as a line that can be shown: no control characters, white space single, short."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 8 * _MAX_LINE_CHARACTERS])
    line = " ".join(shown.split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"


def _progress(line: bytes) -> float | None:
    """The fraction in a line ``{"progress": 0.3}``; None for every other line."""
    if not line.startswith(b'{"progress":') or len(line) > 100:
        return None
    try:
        document = json.loads(line, parse_float=_finite)
    except ValueError:
        return None
    match document:
        case {"progress": int() | float() as fraction, **rest} if not rest and 0 <= fraction <= 1:
            return float(fraction)
    return None


def _start(data: bytes) -> str:
    return repr(one_line(data[:80].decode("utf-8", errors="replace")))


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):  # such as 1e999
        raise ValueError(f"{digits} is too large")
    return value
