"""Qwen3-Coder, Qwen 3.5, Nemotron 3, Step and Seed-OSS: a tag for each argument.

``<tool_call><function=f><parameter=a>1</parameter></function></tool_call>``; most of them write
each tag on a separate line.
"""

from __future__ import annotations

from potluck.text.tool_formats.tagged_calls import TaggedCalls

QWEN_CODER = TaggedCalls(
    name="qwen-coder",
    openings=("<tool_call>", "<function="),
    call_opening="<function=",
    name_end=">",
    parameter_opening="<parameter=",
    key_ends=(">",),
    parameter_close="</parameter>",
    call_close="</function>",
    closes=("</tool_call>",),
    value_space="\n",
    before_call="\n",
    before_parameter="\n",
    before_close="\n",
    is_section=False,
    control_texts=("<tool_call>", "</tool_call>"),
)

SEED = TaggedCalls(
    name="seed",
    openings=("<seed:tool_call>", "<function="),
    call_opening="<function=",
    name_end=">",
    parameter_opening="<parameter=",
    key_ends=(">",),
    parameter_close="</parameter>",
    call_close="</function>",
    closes=("</seed:tool_call>",),
    before_call="\n",
    before_parameter="\n",
    before_close="\n",
    is_section=False,
    control_texts=("<seed:tool_call>", "</seed:tool_call>"),
)
