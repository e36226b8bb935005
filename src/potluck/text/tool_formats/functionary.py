"""Functionary 3.1, and Llama 3.1 if prompted for it: ``<function=f>{"a": 1}</function>``."""

from __future__ import annotations

import re

from potluck.text.tool_formats.named_calls import NamedCalls

FUNCTIONARY = NamedCalls(
    name="functionary",
    openings=("<function=",),
    head="{name}>",
    name_pattern=re.compile(r"([^\s>]+)"),
    arguments_mark=">",
    ends=("</function>",),
    after="</function>",
)
