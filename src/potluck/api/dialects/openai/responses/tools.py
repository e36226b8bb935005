"""Tools of the Responses API other than functions.

A model only knows functions. A tool that the *client* executes is shown to it as a function of its
own, whose arguments are the fields of the tool's calls, and calls are returned as items of the
tool's type. A tool that OpenAI's *servers* execute is ignored, and the response has a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from potluck.api.rendering import Json
from potluck.types.text import Tool

INPUT = "input"
"""The argument of a custom tool."""

_STRING: Mapping[str, object] = {"type": "string"}
_COUNT: Mapping[str, object] = {"type": "integer", "minimum": 1}


def _object(properties: Mapping[str, object], *required: str) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def qualified(namespace: str | None, name: str) -> str:
    """Return the name that a tool in ``namespace`` has for the model."""
    return f"{namespace}__{name}" if namespace else name


def custom_tool(name: str, description: str, syntax: str = "", definition: str = "") -> Tool:
    """Return the function for a custom tool, whose input is a text.

    The text is not held to a grammar in ``syntax``, but the model is shown its ``definition``.
    """
    parameters = _object({INPUT: _STRING}, INPUT)
    if definition:
        description += f"\n\nThe {INPUT} conforms to this {syntax} grammar:\n{definition}"
    return Tool(name=name, description=description, parameters=parameters, is_strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallForm:
    """The items that report the calls of a kind of tool.

    ``fields`` returns the item's own fields for the text of the arguments, which is not a whole
    object if the call was cut off, and empty when it begins. Events about the arguments are named
    after ``event``; there are none without it. They come while the call is generated if it
    ``is_streamed``, else at its end. ``names`` are the item's fields that name the tool.
    """

    item_type: str
    id_prefix: str
    fields: Callable[[str], Json]
    event: str = ""
    is_streamed: bool = False
    names: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A function as which the model knows a tool, and the form in which its calls are reported.

    ``name`` is that of the tool for the client, in ``namespace`` if it is in one.
    """

    function: Tool
    form: CallForm
    name: str
    namespace: str | None = None


def _parsed(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def custom_input(arguments: str) -> str:
    """Return the input in the arguments of a custom tool's call, which may be cut off."""
    # A cut may be within an escape sequence, of up to twelve characters for a surrogate pair.
    for length in range(len(arguments), max(0, len(arguments) - 13), -1):
        for ending in ("", "}", '"}'):
            value = _parsed(arguments[:length] + ending).get(INPUT)
            if isinstance(value, str):
                return value
    return ""


FUNCTION = CallForm(
    item_type="function_call",
    id_prefix="fc",
    fields=lambda text: {"arguments": text},
    event="function_call_arguments",
    is_streamed=True,
)
"""Without its ``names``."""
CUSTOM = CallForm(
    item_type="custom_tool_call",
    id_prefix="ctc",
    fields=lambda text: {"input": custom_input(text)},
    event="custom_tool_call_input",
)
"""Without its ``names``."""


def _client_tool(
    name: str,
    id_prefix: str,
    fields: Callable[[str], Json],
    *,
    description: str,
    parameters: dict[str, object],
) -> ClientTool:
    function = Tool(name=name, description=description, parameters=parameters, is_strict=True)
    form = CallForm(item_type=f"{name}_call", id_prefix=id_prefix, fields=fields)
    return ClientTool(function=function, form=form, name=name)


_CLIENT_TOOLS = (
    _client_tool(
        "local_shell",
        "lsh",
        lambda text: {"action": {"type": "exec", "command": [], "env": {}, **_parsed(text)}},
        description="Runs a program on the user's computer and returns its output.",
        parameters=_object(
            {
                "command": {
                    "type": "array",
                    "items": _STRING,
                    "description": 'The program and its arguments, such as ["bash", "-lc", "ls"].',
                },
                "working_directory": _STRING,
                "timeout_ms": _COUNT,
            },
            "command",
        ),
    ),
    _client_tool(
        "shell",
        "sh",
        lambda text: {
            "action": {
                "commands": [],
                "timeout_ms": None,
                "max_output_length": None,
                **_parsed(text),
            }
        },
        description="Runs shell commands on the user's computer and returns their output.",
        parameters=_object(
            {"commands": {"type": "array", "items": _STRING}, "timeout_ms": _COUNT}, "commands"
        ),
    ),
    _client_tool(
        "apply_patch",
        "apc",
        lambda text: {
            "operation": {"type": "update_file", "path": "", "diff": "", **_parsed(text)}
        },
        description="Creates, changes or deletes a file of the user.",
        parameters=_object(
            {
                "type": {"enum": ["create_file", "update_file", "delete_file"]},
                "path": _STRING,
                "diff": {
                    "type": "string",
                    "description": "Needed to create or update a file. For a new file, every line "
                    "after a +. For a change, @@, then unchanged lines after a space, removed "
                    "lines after a - and added lines after a +.",
                },
            },
            "type",
            "path",
        ),
    ),
)

CLIENT_TOOLS = {tool.name: tool for tool in _CLIENT_TOOLS}
"""Tools of the API's own types that clients execute, by their types."""
