"""Find marks of a format in a text that is still growing."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.text.added_tokens import alternatives


class DelimiterScanner:
    """Finds the first of several marks in a text. Immutable."""

    def __init__(self, marks: Sequence[str]) -> None:
        self._marks = tuple(marks)
        self._pattern = alternatives(marks)
        self._longest = max(map(len, marks), default=0)

    def find(self, text: str, start: int = 0, *, is_end: bool) -> tuple[int, str]:
        """Return the position and the text of the first mark at or after ``start``.

        If there is none, the mark is empty, and the text from the returned position on may still
        become one. With ``is_end``, no more text follows. A mark is reported even if it could
        become a longer one.
        """
        match = self._pattern.search(text, start)
        found = match.start() if match else len(text)
        if not is_end:
            for index in range(max(start, len(text) - self._longest + 1), found):
                if self._may_begin(text[index:]):
                    return index, ""
        return found, match[0] if match else ""

    def _may_begin(self, text: str) -> bool:
        return any(mark.startswith(text) for mark in self._marks)
