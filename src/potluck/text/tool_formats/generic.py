"""JSON in one of the forms that most models know, where a template does not show the form.

Where a template does not know tools at all, ``describe_tools`` tells the model of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from potluck.text.tool_formats.json_calls import JsonCalls
from potluck.types.text import Tool

_KNOWS_TOOLS = re.compile(r"\btools\b")

GENERIC = JsonCalls(
    name="json",
    openings=("<tool_call>", "<|tool_call|>", "<tool_calls>", "<TOOLCALL>", "[TOOL_CALLS]"),
    bare_openings=("{", "["),
    before="\n",
    after="\n",
    closes=("</tool_call>", "<|/tool_call|>", "</tool_calls>", "</TOOLCALL>"),
    separators=("", ";", ","),
    control_texts=(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<tool_calls>",
        "</tool_calls>",
        "[TOOL_CALLS]",
    ),
)


def knows_tools(template_source: str) -> bool:
    """Return whether a chat template tells the model of tools."""
    return _KNOWS_TOOLS.search(template_source) is not None


def describe_tools(tools: Sequence[Tool]) -> str:
    """Return a system message that describes ``tools``, for templates that do not know them.

    It asks for calls in the form of Hermes, which most models that were trained on calls have seen.
    """
    described = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        }
        for tool in tools
    ]
    lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in described)
    return (
        f"You can call functions. These are available, with JSON schemas of their arguments:\n"
        f"<tools>\n{lines}\n</tools>\n"
        "To call a function, answer with a JSON object that has its name and arguments:\n"
        '<tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>'
    )
