"""What a chat model's output consists of, and the protocols of those who take it apart.

A model writes one text. Parts of it are thoughts, and parts are calls of tools, each family in a
form of its own (``potluck.text.tool_formats``).
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
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallStart:
    """A call of the tool ``name`` begins; its arguments follow. Calls are counted from 0."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallArguments:
    """More of the arguments of the call ``index``: a piece of the text of a JSON object."""

    index: int
    text: str


OutputPart = TextPart | ReasoningPart | ToolCallStart | ToolCallArguments


class OutputParser(Protocol):
    """Takes one output apart as it comes. It never raises: what is malformed is text."""

    def push(self, text: str) -> Sequence[OutputPart]:
        """Take more text; return what has become certain."""
        ...

    def finish(self) -> Sequence[OutputPart]:
        """Return what was held back, at the end of the output."""
        ...


class ToolMode(enum.Enum):
    """Whether the model calls tools: never, if it likes, or always."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request, and how they are to be used.

    With ``name`` only that tool is called, and ``mode`` is ``REQUIRED``. Without ``is_parallel`` at
    most one call is made.
    """

    tools: tuple[Tool, ...] = ()
    mode: ToolMode = ToolMode.AUTO
    name: str | None = None
    is_parallel: bool = True


class OutputFormat(Protocol):
    """How a model writes tool calls and thoughts, as its chat template has taught it."""

    @property
    def name(self) -> str:
        """What ``--tool-format`` calls it."""
        ...

    @property
    def control_texts(self) -> frozenset[str]:
        """Control tokens that the parser must see, and are therefore pushed as their texts."""
        ...

    def parser(self, tool_use: ToolUse, *, prompt_end: str) -> OutputParser:
        """Return a parser for one output.

        ``prompt_end`` is the end of the rendered prompt: templates open a thought there, or close
        it at once.
        """
        ...

    def grammar(
        self, tool_use: ToolUse, *, prompt_end: str, response: str | None = None
    ) -> str | None:
        """Return the grammar of the outputs that are allowed, or None if all are.

        ``response`` is the grammar of the answer's text. Thoughts come before it, where the model
        thinks. Raises ``ParameterError`` for a schema that is not supported.
        """
        ...
