"""The parts of a chat model's output, and the protocols of parsers.

A model writes one text, parts of which are reasoning and tool calls, in a format that depends on
the family (``potluck.text.tool_formats``).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.types.text import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPart:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningPart:
    """More of the model's reasoning before its answer."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """The start of a call of the tool ``name``; its arguments follow. Calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArguments:
    """More of the arguments of the call ``index``: a piece of the text of a JSON object."""

    index: int
    text: str


OutputPart = TextPart | ReasoningPart | ToolCallStart | ToolCallArguments


class OutputParser(Protocol):
    """Parses one output incrementally. It never raises: malformed parts are text."""

    def push(self, text: str) -> Sequence[OutputPart]:
        """Parse more text, and return the parts that are now certain."""
        ...

    def finish(self, *, is_cut: bool = False) -> Sequence[OutputPart]:
        """Return the remaining parts at the end of the output.

        An output that ``is_cut`` did not end by itself: of a call that it ends in, the arguments
        that arrived remain, or nothing if there are none yet.
        """
        ...


class ToolMode(enum.Enum):
    """Whether the model calls tools: never, optionally, or always."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request, and how the model may use them.

    With ``name`` only that tool may be called, and ``mode`` is ``REQUIRED``. Without
    ``is_parallel`` at most one call is made.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.AUTO
    name: str | None = None
    is_parallel: bool = True


class OutputFormat(Protocol):
    """The format in which a model writes tool calls and reasoning, which matches its template."""

    @property
    def name(self) -> str:
        """The format's name for ``--tool-format``."""
        ...

    @property
    def control_texts(self) -> frozenset[str]:
        """The control tokens that the parser needs; they are pushed as their texts."""
        ...

    def parser(self, tool_use: ToolUse, *, prompt_end: str) -> OutputParser:
        """Return a parser for one output.

        ``prompt_end`` is the end of the rendered prompt, where templates may open a reasoning
        block, or open and close it.
        """
        ...

    def grammar(
        self, tool_use: ToolUse, *, prompt_end: str, response: str | None = None
    ) -> str | None:
        """Return the grammar of the allowed outputs, or None if all are allowed.

        ``response`` is the grammar of the answer's text, which follows the reasoning, if any. Raise
        ``ParameterError`` if a schema is not supported.
        """
        ...
