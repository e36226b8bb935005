"""The interface of a wire format for tool calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from potluck.grammars.build import json_object, json_schema
from potluck.text.tool_formats.lark import LarkSource
from potluck.text.tool_formats.stream import CallStream, Steps
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import Tool


class ToolSyntax(Protocol):
    """The format of calls: parses them from an output, and provides their grammar.

    A *section* is one or more calls with the marks around them. Immutable.
    """

    @property
    def name(self) -> str:
        """The name of the format in ``--tool-format``."""
        ...

    @property
    def openings(self) -> tuple[str, ...]:
        """Marks that begin a section anywhere in an answer."""
        ...

    @property
    def bare_openings(self) -> tuple[str, ...]:
        """Texts that begin a section only at the beginning of an answer."""
        ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts of the format that are control tokens in some models."""
        ...

    def read(self, stream: CallStream, opening: str, tools: Sequence[Tool]) -> Steps[bool]:
        """Read a section whose opening is held; return whether it is well-formed.

        If it is not, what is held becomes text.
        """
        ...

    def section(self, lark: LarkSource, tools: Sequence[CallableTool], *, is_parallel: bool) -> str:
        """Return the expression of a section, without the first of ``openings`` before it.

        It contains one call, or several if ``is_parallel`` is set and the format allows several in
        a section.
        """
        ...

    @property
    def repeats(self) -> bool:
        """Whether each of several calls is a section."""
        ...

    @property
    def writes_bare(self) -> bool:
        """Whether the grammar allows calls without an opening, as the whole answer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallableTool:
    """A tool that a grammar allows. ``is_free``: the arguments may be any object.

    ``schema`` is the schema of the arguments, an object.
    """

    tool: Tool
    is_free: bool
    schema: Mapping[str, object]

    @property
    def name(self) -> str:
        """The tool's name."""
        return self.tool.name

    def arguments(self, lark: LarkSource) -> str:
        """Return the expression of the arguments as JSON."""
        return lark.part(json_object() if self.is_free else json_schema(self.schema))


def callable_tools(tool_use: ToolUse) -> tuple[CallableTool, ...]:
    """Return the tools that may be called; strict ones have guaranteed arguments."""
    is_required = tool_use.mode is ToolMode.REQUIRED
    return tuple(
        CallableTool(
            tool=tool,
            is_free=not (is_required or tool.is_strict),
            schema={"type": "object", **tool.parameters},
        )
        for tool in tool_use.tools
        if tool_use.name in (None, tool.name)
    )


def is_constrained(tool_use: ToolUse) -> bool:
    """Return whether a grammar determines how calls are written, rather than the model alone."""
    if tool_use.mode is ToolMode.NONE or not tool_use.tools:
        return False
    return not tool_use.is_parallel or not all(tool.is_free for tool in callable_tools(tool_use))
