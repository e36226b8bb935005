r"""Hermes, Qwen 2.5 and 3, SmolLM3, Granite 4 and many others: JSON in ``<tool_call>`` tags.

``<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>``, once for each call.
"""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

HERMES = JsonCalls(
    name="hermes",
    openings=("<tool_call>",),
    before="\n",
    after="\n",
    closes=("</tool_call>",),
    control_texts=("<tool_call>", "</tool_call>"),
    separators=("",),
)
