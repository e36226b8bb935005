"""Kimi K2 and Solar Open: sections of calls with separate marks for names and arguments.

Kimi names a call ``functions.f:0``, where 0 is the number of the call.
"""

from __future__ import annotations

import re

from potluck.text.tool_formats.named_calls import NamedCalls

KIMI_K2 = NamedCalls(
    name="kimi-k2",
    openings=("<|tool_calls_section_begin|>",),
    call_opening="<|tool_call_begin|>",
    head="functions.{name}:{id}<|tool_call_argument_begin|>",
    name_pattern=re.compile(r"\s*(?:functions\.)?(\S+?)(?::\d+)?\s*"),
    arguments_mark="<|tool_call_argument_begin|>",
    ends=("<|tool_call_end|>",),
    after="<|tool_call_end|>",
    closes=("<|tool_calls_section_end|>",),
    control_texts=(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
)

SOLAR = NamedCalls(
    name="solar",
    openings=("<|tool_calls|>",),
    call_opening="<|tool_call:begin|>",
    head="{id}<|tool_call:name|>{name}<|tool_call:args|>",
    name_pattern=re.compile(r"[^<]*<\|tool_call:name\|>\s*(\S+?)\s*"),
    arguments_mark="<|tool_call:args|>",
    id_pattern="[A-Za-z0-9_]{1,40}",
    ends=("<|tool_call:end|>",),
    after="<|tool_call:end|>",
    closes=("<|calls|>",),
    control_texts=(
        "<|tool_calls|>",
        "<|tool_call:begin|>",
        "<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
        "<|calls|>",
    ),
)
