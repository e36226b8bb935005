"""Granite 3: a list of JSON objects after ``<|tool_call|>``. Granite 4 uses Hermes' format."""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

GRANITE = JsonCalls(
    name="granite",
    openings=("<|tool_call|>", "<tool_call>"),
    is_list=True,
    closes=("</tool_call>",),
    writes_close=False,
    control_texts=("<|tool_call|>", "<tool_call>", "</tool_call>"),
    repeats=False,
)
