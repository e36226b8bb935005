"""Parsers that read an output step by step as its text arrives."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.text.tool_formats.stream import CallStream, Steps
from potluck.types.output import OutputPart, ReasoningPart, TextPart, ToolCallArguments


class SteppedParser:
    """Runs ``steps``, which read from ``stream``, as far as text is available."""

    def __init__(self, stream: CallStream, steps: Steps[None]) -> None:
        self._stream = stream
        self._steps = steps
        self._is_done = False
        self._advance()

    def push(self, text: str) -> Sequence[OutputPart]:
        """Process more text; return the parts that have become unambiguous."""
        self._stream.add(text)
        self._advance()
        return _joined(self._stream.take_parts())

    def finish(self, *, is_cut: bool = False) -> Sequence[OutputPart]:
        """Return the text held back, at the end of the output."""
        self._stream.end(is_cut=is_cut)
        self._advance()
        return _joined(self._stream.take_parts())

    def _advance(self) -> None:
        if not self._is_done:
            self._is_done = next(self._steps, True) is True


def _joined(parts: Sequence[OutputPart]) -> Sequence[OutputPart]:
    """Return ``parts`` with consecutive parts merged where one continues the other."""
    result: list[OutputPart] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            result[-1] = TextPart(text=last.text + part.text)
        elif isinstance(part, ReasoningPart) and isinstance(last, ReasoningPart):
            result[-1] = ReasoningPart(text=last.text + part.text)
        elif (
            isinstance(part, ToolCallArguments)
            and isinstance(last, ToolCallArguments)
            and part.index == last.index
        ):
            result[-1] = ToolCallArguments(index=part.index, text=last.text + part.text)
        else:
            result.append(part)
    return result
