"""Thoughts before calls and answers: what grammars allow, and parsers make of it."""

from __future__ import annotations

import pytest
from support.text.grammar_texts import grammar_texts
from support.text.tool_outputs import parse, tool_use

from potluck.grammars import json_schema
from potluck.text.reasoning import reasoning_format
from potluck.text.tool_formats import choose_output_format
from potluck.types.output import ToolMode, ToolUse

ANSWER = json_schema(
    {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
)
JSON = '{"a": 1}'
CALL = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'

# What templates have; a thought and what is before the answer; what comes after it.
CASES = {
    "think": ("<tool_call> </think>", "<think>\nHm.\n</think>\n\n", ""),
    "granite-3.2": (
        "<tool_call> Here is my thought process: Here is my response:",
        "Here is my thought process: Hm.\n\nHere is my response: ",
        "",
    ),
    "think-response": (
        "<tool_call> </think> </response>",
        "<think>Hm.</think><response>",
        "</response>",
    ),
    "mistral": ("<tool_call> [THINK] [/THINK]", "[THINK]Hm.[/THINK]", ""),
    "gemma-4": (
        "<tool_call> <|channel>thought <channel|>",
        "<|channel>thought\nHm.\n<channel|>",
        "",
    ),
    "command": (
        "<tool_call> <|END_THINKING|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>",
        "<|END_RESPONSE|>",
    ),
    "seed": ("<tool_call> </seed:think>", "<seed:think>Hm.</seed:think>", ""),
}
HARMONY = "<|channel|>analysis <|call|>"
HARMONY_CONTROL = frozenset(
    ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")
)
THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize("is_control", [False, True], ids=["plain", "control"])
@pytest.mark.parametrize("name", CASES)
def test_thought_comes_before_the_answer(name: str, is_control: bool) -> None:
    template, before, after = CASES[name]
    reasoning = reasoning_format(template)
    assert reasoning is not None
    assert before.startswith(reasoning.open_texts)
    control = reasoning.control_texts if is_control else frozenset()
    texts = grammar_texts(frozenset(control))
    output_format = choose_output_format(template, control)
    grammar = output_format.grammar(ToolUse(), prompt_end="", response=ANSWER)
    assert grammar is not None
    assert texts.allows(grammar, before + JSON + after), texts.rejected_at(
        grammar, before + JSON + after
    )
    assert texts.allows(grammar, JSON)
    assert not texts.allows(grammar, before + "Hello" + after)
    assert parse(output_format, before + JSON + after) == ["~Hm.", JSON]


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("command", "think-response")]
)
def test_thought_comes_before_calls(name: str) -> None:
    template, before, _ = CASES[name]
    output_format = choose_output_format(template, ())
    grammar = output_format.grammar(tool_use(ToolMode.REQUIRED), prompt_end="")
    assert grammar is not None
    texts = grammar_texts()
    assert texts.allows(grammar, before + CALL), texts.rejected_at(grammar, before + CALL)
    assert texts.allows(grammar, CALL)
    assert not texts.allows(grammar, before)
    assert parse(output_format, before + CALL, 1) == ["~Hm.", ("clock", "{}")]


def test_marks_of_an_answer_may_stand_around_calls() -> None:
    output_format = choose_output_format(CASES["think-response"][0], ())
    text = f"<think>Hm.</think>\n{CALL}"
    assert parse(output_format, text) == ["~Hm.", ("clock", "{}")]


class TestHarmony:
    output_format = choose_output_format(HARMONY, HARMONY_CONTROL)

    def test_thought_and_answer(self) -> None:
        text = f"{THOUGHT}{FINAL}Yes. <b>\n"
        assert parse(self.output_format, text) == ["~Hm.", "Yes. <b>\n"]
        assert parse(self.output_format, text, 1) == ["~Hm.", "Yes. <b>\n"]

    def test_answer_with_a_schema(self) -> None:
        texts = grammar_texts(HARMONY_CONTROL)
        grammar = self.output_format.grammar(ToolUse(), prompt_end="", response=ANSWER)
        assert grammar is not None
        assert texts.allows(grammar, f"{FINAL}{JSON}")
        assert texts.allows(grammar, f"{THOUGHT}{THOUGHT}{FINAL}{JSON}")
        assert not texts.allows(grammar, JSON)
        assert not texts.allows(grammar, f"{FINAL}Yes")

    def test_prompt_may_have_begun_the_thought(self) -> None:
        prompt_end = "<|start|>assistant<|channel|>analysis<|message|>So"
        text = " far.<|end|><|start|>assistant<|channel|>final<|message|>Yes"
        parser = self.output_format.parser(tool_use(), prompt_end=prompt_end)
        kinds = [type(part).__name__ for part in (*parser.push(text), *parser.finish())]
        assert kinds == ["ReasoningPart", "TextPart"]
        grammar = self.output_format.grammar(tool_use(ToolMode.REQUIRED), prompt_end=prompt_end)
        assert grammar is not None
        assert not grammar_texts(HARMONY_CONTROL).allows(grammar, text)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("Hello <b>", ["Hello <b>"]),
            (" to=functions.clock<|channel|>commentary json<|message|>{}", [("clock", "{}")]),
            (
                "<|channel|>commentary to=functions.clock <|constrain|>json<|message|>{}<|call|>",
                [("clock", "{}")],
            ),
            ("<|channel|>commentary<|message|>I look.<|end|>", ["I look."]),
            (
                "<|channel|>commentary to=functions.rm<|message|>{}<|call|>",
                ["<|channel|>commentary to=functions.rm<|message|>{}"],
            ),
            (
                "<|channel|>commentary to=functions.rm<|message|>",
                ["<|channel|>commentary to=functions.rm<|message|>"],
            ),
            (
                "<|channel|>commentary to=functions.clock<|message|>now!<|call|>",
                ["now!"],
            ),
            ("<|channel|>final", ["<|channel|>final"]),
            ("<|start|>", ["<|start|>"]),
            ("\n<|start|>assistant<|s", ["\n<|start|>assistant<|s"]),
            ("<|start|>" + "x" * 600, ["<|start|>" + "x" * 600]),
            (f"<|start|><|start|>assistant{FINAL}a", ["a"]),
            (f"<|start|>{'x' * 600}<|start|>assistant{FINAL}a", [f"<|start|>{'x' * 600}a"]),
            (
                "<|channel|>analysis<|message|>Hm.<|start|>" + "x" * 600,
                ["~Hm.", "<|start|>" + "x" * 600],
            ),
            (f"{THOUGHT}{THOUGHT}{FINAL}a<|end|>", ["~Hm.Hm.", "a"]),
            (f"{FINAL}a<|return|>", ["a"]),
            (f"{FINAL}a<|end|><|start|>assistant{FINAL}b", ["ab"]),
            ("<|channel|>analysis<|message|>cut o", ["~cut o"]),
            (
                "<|channel|>commentary to=functions.clock<|message|>{}<|call|><|start|>assistant"
                '<|channel|>commentary to=functions.clock<|message|>{"a": 1}<|call|>',
                [("clock", "{}"), ("clock", '{"a": 1}')],
            ),
        ],
    )
    def test_messages(self, text: str, expected: list[object]) -> None:
        assert parse(self.output_format, text) == expected
        assert parse(self.output_format, text, 1) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<|s", []),
            ("\n<|ch", []),
            (f"{FINAL}a<|s", ["a"]),
            (f"{FINAL}a<|chan", ["a"]),
            (f"{FINAL}a<|end|><|sta", ["a"]),
            (f"{THOUGHT}<|sta", ["~Hm."]),
        ],
    )
    def test_the_beginning_of_a_mark_is_dropped_where_an_output_is_cut(
        self, text: str, expected: list[object]
    ) -> None:
        assert parse(self.output_format, text, is_cut=True) == expected
        assert parse(self.output_format, text, 1, is_cut=True) == expected


def test_control_tokens_of_calls_vanish_without_tools() -> None:
    output_format = choose_output_format("<|python_tag|>", ("<|python_tag|>", "<|eot_id|>"))
    assert output_format.control_texts == {"<|python_tag|>"}
    parser = output_format.parser(tool_use(ToolMode.NONE), prompt_end="")
    parts = [*parser.push("<|python_"), *parser.push("tag|>x"), *parser.finish()]
    assert [getattr(part, "text", "") for part in parts] == ["x"]
