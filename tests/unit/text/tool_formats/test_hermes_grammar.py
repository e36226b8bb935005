"""The grammar of tool calls of the Hermes form, with and without control tokens."""

from __future__ import annotations

import pytest
from support.text.grammar_texts import grammar_texts
from support.text.tool_outputs import TOOLS, tool_use

from potluck.grammars import json_schema
from potluck.text.tool_formats import choose_output_format
from potluck.types.output import ToolMode, ToolUse
from potluck.types.text import Tool

TEMPLATE = "{{ '<tool_call>' }} </think>"
CONTROL = frozenset({"<tool_call>", "</tool_call>", "<think>", "</think>"})
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
CLOCK = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
WRONG = CALL.replace('"Žilina"', "1")
STRICT = tuple(Tool(name=tool.name, parameters=tool.parameters, is_strict=True) for tool in TOOLS)
REQUIRED = tool_use(ToolMode.REQUIRED)
NAMED = tool_use(ToolMode.REQUIRED, name="clock")
ONE = tool_use(ToolMode.REQUIRED, is_parallel=False)
STRICT_AUTO = ToolUse(tools=STRICT)
ONE_AUTO = tool_use(is_parallel=False)
ANSWER = json_schema({"type": "object", "properties": {"a": {"type": "integer"}}})

CASES = [
    (REQUIRED, None, "", [CALL, f"{CALL}\n{CLOCK}", f"<think>Hm.</think>\n\n{CALL}"],
     ["", "x", WRONG, f"x{CALL}", f"{CALL}x"]),
    (NAMED, None, "", [CLOCK], [CALL]),
    (ONE, None, "", [CALL, CLOCK], [f"{CALL}\n{CLOCK}"]),
    (STRICT_AUTO, None, "", ["", "Hello", CALL, f"I look.\n{CALL}\n{CLOCK}\nx", "<tool", "<think"],
     [WRONG, f"x\n{WRONG}", f"{CALL}\n{WRONG}", "<tool_call>"]),
    (ONE_AUTO, None, "", ["", "Hello", CALL, WRONG, f"x{WRONG}"], [f"{CALL}\n{CALL}"]),
    (tool_use(), ANSWER, "", ['{"a": 1}', CALL, '<think>x</think>{"a": 1}'], ["x", '{"a": ""}']),
    (tool_use(ToolMode.NONE), ANSWER, "", ['{"a": 1}'], [CALL, "x"]),
    (ToolUse(), ANSWER, "<think>\n", ['Hm.</think>\n\n{"a": 1}'], ['{"a": 1}']),
    (ToolUse(), ANSWER, "<think>\n\n</think>\n\n", ['{"a": 1}'], ['<think></think>{"a": 1}']),
]  # fmt: skip


@pytest.mark.parametrize("control", [frozenset(), CONTROL], ids=["plain", "control"])
@pytest.mark.parametrize("index", range(len(CASES)))
def test_grammar(index: int, control: frozenset[str]) -> None:
    use, response, prompt_end, allowed, refused = CASES[index]
    output_format = choose_output_format(TEMPLATE, control)
    grammar = output_format.grammar(use, prompt_end=prompt_end, response=response)
    assert grammar is not None
    texts = grammar_texts(control)
    for text in allowed:
        assert texts.allows(grammar, text), texts.rejected_at(grammar, text)
    for text in refused:
        assert not texts.allows(grammar, text), text


@pytest.mark.parametrize("use", [tool_use(), tool_use(ToolMode.NONE), ToolUse()])
def test_free_outputs_need_no_grammar(use: ToolUse) -> None:
    assert choose_output_format(TEMPLATE, CONTROL).grammar(use, prompt_end="") is None
