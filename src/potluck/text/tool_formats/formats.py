"""The tool call formats that are described by data alone.

Each is a form of ``JsonCalls`` (JSON objects), ``NamedCalls`` (a name, then the arguments as JSON)
or ``TaggedCalls`` (a tag for each argument).
"""

from __future__ import annotations

import re
from dataclasses import replace

from potluck.text.tool_formats.json_calls import JsonCalls, NamedCalls
from potluck.text.tool_formats.tagged_calls import TaggedCalls

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
)
"""Llama 3.1 to 3.3 and Llama 4: a JSON object is the whole answer.

``{"name": "f", "parameters": {"a": 1}}``, in some answers after ``<|python_tag|>``. Multiple calls
are separated by semicolons.
"""

GRANITE = JsonCalls(
    name="granite",
    openings=("<|tool_call|>", "<tool_call>"),
    is_list=True,
    closes=("</tool_call>",),
    writes_close=False,
    control_texts=("<|tool_call|>", "<tool_call>", "</tool_call>"),
)
"""Granite 3: a list of JSON objects after ``<|tool_call|>``. Granite 4 uses Hermes' format."""

PHI = JsonCalls(
    name="phi",
    openings=("<|tool_call|>", "functools"),
    is_list=True,
    closes=("<|/tool_call|>",),
    control_texts=("<|tool_call|>", "<|/tool_call|>"),
)
"""Phi-4-mini: ``<|tool_call|>[...]<|/tool_call|>``, and ``functools[...]`` as Firefunction does."""

FUNCTOOLS = JsonCalls(
    name="functools",
    openings=("functools", "<|tool_call|>"),
    is_list=True,
)
"""Firefunction."""

TOOL_CALLS_LIST = JsonCalls(
    name="tool-calls-list",
    openings=("<tool_calls>",),
    is_list=True,
    closes=("</tool_calls>",),
    control_texts=("<tool_calls>", "</tool_calls>"),
)
"""Apriel and Jamba."""

NEMOTRON = JsonCalls(
    name="nemotron",
    openings=("<TOOLCALL>",),
    is_list=True,
    closes=("</TOOLCALL>",),
    control_texts=("<TOOLCALL>", "</TOOLCALL>"),
)
"""Nemotron Nano 2."""

COMMAND = JsonCalls(
    name="command",
    openings=("<|START_ACTION|>",),
    is_list=True,
    id_key="tool_call_id",
    name_key="tool_name",
    arguments_key="parameters",
    closes=("<|END_ACTION|>",),
    control_texts=("<|START_ACTION|>", "<|END_ACTION|>"),
)
"""Command R7B and A."""

GIGACHAT = JsonCalls(
    name="gigachat",
    openings=("<|function_call|>",),
    control_texts=("<|function_call|>",),
)
"""GigaChat 3.1, which writes a single object."""

MINIMAX_M1 = JsonCalls(
    name="minimax-m1",
    openings=("<tool_calls>",),
    is_spaced=True,
    closes=("</tool_calls>",),
    separators=("",),
    separator="\n",
    control_texts=("<tool_calls>", "</tool_calls>"),
)
"""JSON lines within ``<tool_calls>``."""

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
    control_texts=("<minimax:tool_call>", "</minimax:tool_call>"),
)

_MISTRAL = "[TOOL_CALLS]"

MISTRAL_LIST = JsonCalls(
    name="mistral-list",
    openings=(_MISTRAL,),
    is_list=True,
    last='(", \\"id\\": \\"" /[a-zA-Z0-9]{9}/ "\\"")?',
    control_texts=(_MISTRAL,),
)
"""Mistral: ``[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]``."""

MISTRAL = NamedCalls(
    name="mistral",
    repeats=True,
    openings=(_MISTRAL,),
    head="{name}{id}[ARGS]",
    id_mark="[CALL_ID]",
    id_pattern="[A-Za-z0-9]{9}",
    name_pattern=re.compile(r"\s*([^\s\[\]]+?)\s*(?:\[CALL_ID\][^\[\]]*)?"),
    arguments_mark="[ARGS]",
    control_texts=(_MISTRAL, "[ARGS]", "[CALL_ID]"),
)
"""Mistral from tokenizer version 11 on: ``[TOOL_CALLS]f[ARGS]{"a": 1}`` once for each call.

Some models write ``[CALL_ID]`` and an id after the name, which is dropped.
"""

FUNCTIONARY = NamedCalls(
    name="functionary",
    repeats=True,
    openings=("<function=",),
    head="{name}>",
    name_pattern=re.compile(r"([^\s>]+)"),
    arguments_mark=">",
    ends=("</function>",),
    after="</function>",
)
"""Functionary 3.1, and Llama 3.1 if prompted for it: ``<function=f>{"a": 1}</function>``."""

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
"""Sections of calls with separate marks for names and arguments.

A call is named ``functions.f:0``, where 0 is the number of the call.
"""

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
"""Solar Open, whose sections are like those of Kimi K2."""

_DEEPSEEK_BEGIN, _DEEPSEEK_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_DEEPSEEK_CALL, _DEEPSEEK_CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"
_DEEPSEEK_CONTROL = (
    _DEEPSEEK_BEGIN,
    _DEEPSEEK_END,
    _DEEPSEEK_CALL,
    _DEEPSEEK_CALL_END,
    _DEEPSEEK_SEPARATOR,
)

DEEPSEEK_V3 = NamedCalls(
    name="deepseek-v3",
    # R1's distilled models often generate other openings than those in training.
    openings=(_DEEPSEEK_BEGIN, "<｜tool_calls_begin｜>", "<｜tool calls begin｜>"),
    call_opening=_DEEPSEEK_CALL,
    head=f"function{_DEEPSEEK_SEPARATOR}{{name}}\n```json\n",
    name_pattern=re.compile(rf"\s*function\s*{_DEEPSEEK_SEPARATOR}\s*(\S+)\s*"),
    arguments_mark="```json",
    ends=("```", _DEEPSEEK_CALL_END),
    after=f"\n```{_DEEPSEEK_CALL_END}",
    separator="\n",
    closes=(_DEEPSEEK_END,),
    control_texts=_DEEPSEEK_CONTROL,
)
"""DeepSeek V3 and R1.

``<｜tool▁call▁begin｜>function<｜tool▁sep｜>f`` and a fenced block of arguments.
"""

DEEPSEEK_V3_1 = NamedCalls(
    name="deepseek-v3.1",
    openings=(_DEEPSEEK_BEGIN,),
    call_opening=_DEEPSEEK_CALL,
    head=f"{{name}}{_DEEPSEEK_SEPARATOR}",
    name_pattern=re.compile(r"\s*(\S+)\s*"),
    arguments_mark=_DEEPSEEK_SEPARATOR,
    ends=(_DEEPSEEK_CALL_END,),
    after=_DEEPSEEK_CALL_END,
    closes=(_DEEPSEEK_END,),
    control_texts=_DEEPSEEK_CONTROL,
)
"""DeepSeek V3.1: ``<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>``."""

_DSML = "｜DSML｜"


def _deepseek_tags(name: str, section: str) -> TaggedCalls:
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
        control_texts=(_DSML,),
    )


DEEPSEEK_V3_2 = _deepseek_tags("deepseek-v3.2", "function_calls")
DEEPSEEK_V4 = _deepseek_tags("deepseek-v4", "tool_calls")

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
    repeats=True,
    control_texts=("<tool_call>", "</tool_call>"),
)
"""Qwen3-Coder, Qwen 3.5, Nemotron 3 and Step.

``<tool_call><function=f><parameter=a>1</parameter></function></tool_call>``; most of them write
each tag on a separate line.
"""

SEED = replace(
    QWEN_CODER,
    name="seed",
    openings=("<seed:tool_call>", "<function="),
    closes=("</seed:tool_call>",),
    value_space="",
    control_texts=("<seed:tool_call>", "</seed:tool_call>"),
)

GLM = TaggedCalls(
    name="glm",
    openings=("<tool_call>",),
    call_opening="",
    name_end="",
    parameter_opening="<arg_key>",
    key_ends=("</arg_key>\n<arg_value>", "</arg_key><arg_value>"),
    parameter_close="</arg_value>",
    call_close="</tool_call>",
    is_spaced=False,
    repeats=True,
    control_texts=(
        "<tool_call>",
        "</tool_call>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
)
"""GLM 4.5 and later, Ling and Laguna: keys and values in separate tags.

``<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>``; GLM 4.5 and 4.6 write line
breaks between the tags, later ones do not.
"""

GENERIC = JsonCalls(
    name="json",
    openings=("<tool_call>", "<|tool_call|>", "<tool_calls>", "<TOOLCALL>", "[TOOL_CALLS]"),
    bare_openings=("{", "["),
    is_spaced=True,
    repeats=True,
    closes=("</tool_call>", "<|/tool_call|>", "</tool_calls>", "</TOOLCALL>"),
    separators=("", ";", ","),
    control_texts=(
        "<tool_call>",
        "</tool_call>",
        "<|tool_call|>",
        "<|/tool_call|>",
        "<tool_calls>",
        "</tool_calls>",
        "[TOOL_CALLS]",
    ),
)
"""JSON in one of the forms that most models know, for templates that do not show the form.

``potluck.text.template_gaps`` asks for the first of them if a template does not support tools.
"""
