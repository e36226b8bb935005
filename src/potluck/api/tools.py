"""Validation of tools, shared by all dialects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from potluck.api.bodies import StrictObject
from potluck.api.errors import ApiError, invalid
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import Tool

MAX_TOOLS = 512
"""OpenAI allows 128 tools; agents that use many tool servers have sent more."""

_NAME = re.compile(r"[a-zA-Z0-9_.:/-]{1,128}")


class FunctionBody(StrictObject, frozen=True, kw_only=True):
    """A function that the model can call, as in OpenAI's chat API and Ollama's.

    ``parameters`` is a JSON schema.
    """

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """Return the function as a tool."""
        return Tool(
            name=self.name,
            description=self.description or "",
            parameters=self.parameters or {},
            is_strict=bool(self.strict),
        )


def not_among(where: str, name: str) -> ApiError:
    """Return the error for a tool name that the request does not define."""
    return invalid(where, f"{where} names {name[:40]!r}, which is not in tools")


def tool_use(
    tools: Sequence[Tool],
    *,
    mode: ToolMode = ToolMode.AUTO,
    name: str | None = None,
    is_parallel: bool = True,
) -> ToolUse:
    """Return tools with their choice. Raises ``ApiError`` for inconsistent values."""
    if len(tools) > MAX_TOOLS:
        raise invalid("tools", f"tools has {len(tools)} tools; the limit is {MAX_TOOLS}")
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if not _NAME.fullmatch(tool.name):
            raise invalid(
                f"tools[{index}].name",
                f"tools[{index}] has the invalid name {tool.name[:40]!r}: names have 1 to "
                "128 letters, digits and any of _ . : / -",
            )
        if tool.name in seen:
            raise invalid(f"tools[{index}].name", f"tools has two tools named {tool.name}")
        seen.add(tool.name)
    if not tools and mode is ToolMode.REQUIRED:
        raise invalid("tool_choice", "tool_choice requires a tool call, but there are no tools")
    if name is not None and name not in seen:
        raise not_among("tool_choice", name)
    return ToolUse(tools=tuple(tools), mode=mode, name=name, is_parallel=is_parallel)
