"""Llama 3.1 to 3.3 and Llama 4: a JSON object is the whole answer.

``{"name": "f", "parameters": {"a": 1}}``, in some answers after ``<|python_tag|>``. Multiple calls
are separated by semicolons.
"""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls

LLAMA = JsonCalls(
    name="llama",
    openings=("<|python_tag|>", "<|python_start|>"),
    bare_openings=("{",),
    arguments_key="parameters",
    closes=("<|python_end|>",),
    separators=(";", ",", ""),
    separator="; ",
    control_texts=("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    writes_bare=True,
    writes_close=False,
    repeats=False,
)
