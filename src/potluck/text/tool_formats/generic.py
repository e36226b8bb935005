"""JSON in one of the forms that most models know, for templates that do not show the form.

``potluck.text.template_gaps`` asks for the first of them if a template does not support tools.
"""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

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
