"""Lists of JSON objects within marks: Apriel and Jamba, Nemotron Nano 2, Command R7B and A; and
GigaChat 3.1, which writes a single object.
"""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

TOOL_CALLS_LIST = JsonCalls(
    name="tool-calls-list",
    openings=("<tool_calls>",),
    is_list=True,
    closes=("</tool_calls>",),
    control_texts=("<tool_calls>", "</tool_calls>"),
    repeats=False,
)

NEMOTRON = JsonCalls(
    name="nemotron",
    openings=("<TOOLCALL>",),
    is_list=True,
    closes=("</TOOLCALL>",),
    control_texts=("<TOOLCALL>", "</TOOLCALL>"),
    repeats=False,
)

COMMAND = JsonCalls(
    name="command",
    openings=("<|START_ACTION|>",),
    is_list=True,
    id_key="tool_call_id",
    name_key="tool_name",
    arguments_key="parameters",
    closes=("<|END_ACTION|>",),
    control_texts=("<|START_ACTION|>", "<|END_ACTION|>"),
    repeats=False,
)

GIGACHAT = JsonCalls(
    name="gigachat",
    openings=("<|function_call|>",),
    control_texts=("<|function_call|>",),
    repeats=False,
)
