"""MiniMax: JSON lines within ``<tool_calls>`` (M1), and a tag for each argument (M2)."""

from __future__ import annotations

from potluck.text.tool_formats.json_calls import JsonCalls
from potluck.text.tool_formats.tagged_calls import TaggedCalls

MINIMAX_M1 = JsonCalls(
    name="minimax-m1",
    openings=("<tool_calls>",),
    before="\n",
    after="\n",
    closes=("</tool_calls>",),
    separators=("",),
    separator="\n",
    control_texts=("<tool_calls>", "</tool_calls>"),
    repeats=False,
)

MINIMAX_M2 = TaggedCalls(
    name="minimax-m2",
    openings=("<minimax:tool_call>",),
    call_opening='<invoke name="',
    name_end='">',
    parameter_opening='<parameter name="',
    key_ends=('">',),
    parameter_close="</parameter>",
    call_close="</invoke>",
    closes=("</minimax:tool_call>",),
    before_call="\n",
    before_parameter="\n",
    before_close="\n",
    control_texts=("<minimax:tool_call>", "</minimax:tool_call>"),
)
