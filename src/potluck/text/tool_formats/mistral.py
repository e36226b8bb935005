"""Mistral: a list of JSON objects, or from tokenizer version 11 on a name and arguments.

``[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]``, or ``[TOOL_CALLS]f[ARGS]{"a": 1}`` once for
each call. Some models write ``[CALL_ID]`` and an id after the name, which is dropped.
"""

from __future__ import annotations

import re

from potluck.text.tool_formats.json_calls import JsonCalls
from potluck.text.tool_formats.named_calls import NamedCalls

_OPENING = "[TOOL_CALLS]"

MISTRAL_LIST = JsonCalls(
    name="mistral-list",
    openings=(_OPENING,),
    is_list=True,
    last='(", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\"")?',
    control_texts=(_OPENING,),
    repeats=False,
)

MISTRAL = NamedCalls(
    name="mistral",
    openings=(_OPENING,),
    head="{name}{id}[ARGS]",
    id_mark="[CALL_ID]",
    id_pattern="[A-Za-z0-9]{9}",
    name_pattern=re.compile(r"\s*([^\s\[\]]+?)\s*(?:\[CALL_ID\][^\[\]]*)?"),
    arguments_mark="[ARGS]",
    control_texts=(_OPENING, "[ARGS]", "[CALL_ID]"),
)
