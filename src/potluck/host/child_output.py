"""A child's output, bounded and validated. Pure, except for the progress callback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

MAX_OUTPUT_BYTES = 1 << 20
"""Far above the size of any valid answer: a device takes about a kilobyte."""

_MAX_STDERR_BYTES = 8192
_MAX_LINE_CHARACTERS = 300
"""The maximum length of a reason, which is one line of a table or of a log."""


class Stdout:
    """Collects standard output up to a limit; progress lines go to a callback instead."""

    def __init__(self, on_progress: Callable[[float], None] | None) -> None:
        self._on_progress = on_progress
        self._kept = bytearray()
        self._line = bytearray()  # the last one, which is incomplete
        self._num_bytes = 0

    @property
    def is_too_long(self) -> bool:
        """Whether more was received than any valid answer has, including progress lines."""
        return self._num_bytes > MAX_OUTPUT_BYTES

    @property
    def data(self) -> bytes:
        """The output without progress lines."""
        return bytes(self._kept + self._line)

    def take(self, data: bytes) -> None:
        """Add output. Output beyond the limit is dropped."""
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
        """Add output."""
        self._kept = (self._kept + data)[-_MAX_STDERR_BYTES:]

    @property
    def last_line(self) -> str:
        """The last line that is not blank, sanitized, or empty."""
        lines = self._kept.decode("utf-8", errors="replace").splitlines()
        return next((clean for line in reversed(lines) if (clean := one_line(line))), "")


class Status:
    """The supervisor's report about a child (``potluck.host.supervisor``)."""

    def __init__(self) -> None:
        self._messages = b""

    def take(self, data: bytes) -> None:
        """Add output."""
        self._messages += data

    @property
    def pid(self) -> int | None:
        """The child's process id, once it runs."""
        return self._number("pid")

    @property
    def returncode(self) -> int | None:
        """The child's return code, as in ``subprocess``, once it has ended."""
        return self._number("ended")

    @property
    def is_stuck(self) -> bool:
        """Whether the child was killed but did not end."""
        return b"stuck\n" in self._messages

    @property
    def has_ended(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.is_stuck or self.returncode is not None

    def _number(self, name: str) -> int | None:
        for line in self._messages.decode("ascii").splitlines(keepends=True):
            word, _, number = line.partition(" ")
            if word == name and number.endswith("\n"):
                return int(number)
        return None


def read_document(data: bytes) -> dict[str, object] | str:
    """Parse a child's whole output: its answer, or ``{"refused": "why"}``.

    If the output is invalid, return what is wrong with it. Only finite numbers are valid.
    """
    if not data.strip():
        return "printed nothing"
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        return one_line(f"printed an invalid JSON document ({error}): {_start(data)}")
    if not isinstance(document, dict):
        return f"printed a JSON document that is not an object: {_start(data)}"
    if not isinstance(document.get("refused", ""), str):
        return f"refused without a reason: {_start(data)}"
    return document


def one_line(text: str) -> str:
    """Return ``text`` as one short line without control characters and repeated spaces."""
    shown = "".join(c if c.isprintable() else " " for c in text[: 8 * _MAX_LINE_CHARACTERS])
    line = " ".join(shown.split())
    return line if len(line) <= _MAX_LINE_CHARACTERS else line[: _MAX_LINE_CHARACTERS - 1] + "…"


def _progress(line: bytes) -> float | None:
    """Return the fraction in a line ``{"progress": 0.3}``; None for any other line."""
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
    raise ValueError(f"{name} is not a number")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):  # such as 1e999
        raise ValueError(f"{digits} is too large")
    return value
