"""DeepSeek: V3 and R1, V3.1, and the tags of V3.2 and V4.

V3 and R1 write ``<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`` and a fenced block of arguments;
V3.1 writes ``<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>``.
"""

from __future__ import annotations

import re

from potluck.text.tool_formats.named_calls import NamedCalls
from potluck.text.tool_formats.tagged_calls import TaggedCalls

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_CONTROL = (_BEGIN, _END, _CALL, _CALL_END, _SEPARATOR)

DEEPSEEK_V3 = NamedCalls(
    name="deepseek-v3",
    # R1's distilled models often generate other openings than those in training.
    openings=(_BEGIN, "<｜tool_calls_begin｜>", "<｜tool calls begin｜>"),
    call_opening=_CALL,
    head=f"function{_SEPARATOR}{{name}}\n```json\n",
    name_pattern=re.compile(rf"\s*function\s*{_SEPARATOR}\s*(\S+)\s*"),
    arguments_mark="```json",
    ends=("```", _CALL_END),
    after=f"\n```{_CALL_END}",
    separator="\n",
    closes=(_END,),
    control_texts=_CONTROL,
)

DEEPSEEK_V3_1 = NamedCalls(
    name="deepseek-v3.1",
    openings=(_BEGIN,),
    call_opening=_CALL,
    head=f"{{name}}{_SEPARATOR}",
    name_pattern=re.compile(r"\s*(\S+)\s*"),
    arguments_mark=_SEPARATOR,
    ends=(_CALL_END,),
    after=_CALL_END,
    closes=(_END,),
    control_texts=_CONTROL,
)

_DSML = "｜DSML｜"


def _with_tags(name: str, section: str) -> TaggedCalls:
    return TaggedCalls(
        name=name,
        openings=(f"<{_DSML}{section}>",),
        call_opening=f'<{_DSML}invoke name="',
        name_end='">',
        parameter_opening=f'<{_DSML}parameter name="',
        key_ends=('" string="true">', '" string="false">', '">'),
        text_key_end='" string="true">',
        json_key_end='" string="false">',
        parameter_close=f"</{_DSML}parameter>",
        call_close=f"</{_DSML}invoke>",
        closes=(f"</{_DSML}{section}>",),
        before_call="\n",
        before_parameter="\n",
        before_close="\n",
        control_texts=(_DSML,),
    )


DEEPSEEK_V3_2 = _with_tags("deepseek-v3.2", "function_calls")
DEEPSEEK_V4 = _with_tags("deepseek-v4", "tool_calls")
