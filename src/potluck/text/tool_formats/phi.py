"""Phi-4-mini and Firefunction: lists of JSON objects.

Phi-4-mini writes ``<|tool_call|>[...]<|/tool_call|>``, and ``functools[...]`` as Firefunction does.
"""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

PHI = JsonCalls(
    name="phi",
    openings=("<|tool_call|>", "functools"),
    is_list=True,
    closes=("<|/tool_call|>",),
    control_texts=("<|tool_call|>", "<|/tool_call|>"),
    repeats=False,
)

FUNCTOOLS = JsonCalls(
    name="functools",
    openings=("functools", "<|tool_call|>"),
    is_list=True,
    repeats=False,
)
