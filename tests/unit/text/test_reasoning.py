"""Thoughts and answers."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from potluck.text.reasoning import (
    ReasoningFormat,
    ReasoningSplitter,
    ThoughtState,
    reasoning_format,
)
from potluck.types.output import OutputPart, ReasoningPart, TextPart

OPEN, CLOSED = ThoughtState.OPEN, ThoughtState.CLOSED


def format_of(*signs: str) -> ReasoningFormat:
    found = reasoning_format("{{ '" + " ".join(signs) + "' }}")
    assert found is not None
    return found


def joined(parts: Iterable[OutputPart]) -> list[tuple[str, str]]:
    """The parts' kinds and texts; parts of one kind in a row are one."""
    runs: list[tuple[str, str]] = []
    for part in parts:
        assert isinstance(part, TextPart | ReasoningPart)
        assert part.text
        kind = "thought" if isinstance(part, ReasoningPart) else "text"
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] + part.text)
        else:
            runs.append((kind, part.text))
    return runs


def split(
    reasoning: ReasoningFormat,
    pieces: Iterable[str],
    state: ThoughtState = ThoughtState.UNDECIDED,
) -> list[tuple[str, str]]:
    splitter = ReasoningSplitter(reasoning, state=state)
    parts = [part for piece in pieces for part in splitter.push(piece)]
    return joined([*parts, *splitter.finish()])


THINK = format_of("</think>")
HARMONY = format_of("<|channel|>analysis<|message|>")
GEMMA = format_of("<|channel>thought", "<channel|>")
COMMAND = format_of("<|END_THINKING|>", "<|END_RESPONSE|>")
MISTRAL = format_of("[THINK]", "[/THINK]")
GRANITE = format_of("Here is my thought process:", "Here is my response:")
GRANITE_TAGS = format_of("</think>", "</response>")
TO_SELF = format_of(" to=self<|message|>")

CASES = {
    "thought, then answer": (
        THINK, "\n<think>\n1 < 2, </ b\n\nso\n</think>\n\n Yes.\n", None,
        [("thought", "1 < 2, </ b\n\nso"), ("text", "Yes.\n")],
    ),
    "no thought": (THINK, "  An answer. <think>x</think>", None,
                   [("text", "  An answer. <think>x</think>")]),
    "opened by the prompt": (THINK, "\nhm </think>\n4", OPEN, [("thought", "hm"), ("text", "4")]),
    "closed by the prompt": (THINK, "\n\n4 </think>", CLOSED, [("text", "4 </think>")]),
    "within the answer": (THINK, " <think>", ThoughtState.ANSWER, [("text", " <think>")]),
    "empty thought": (THINK, "<think>\n\n</think>\n\n4", None, [("text", "4")]),
    "only a thought": (THINK, "<think>and so on \n", None, [("thought", "and so on")]),
    "cut in a mark": (THINK, "<think>so </thi", None, [("thought", "so </thi")]),
    "cut before it": (THINK, " <thi", None, [("text", " <thi")]),
    "stray end": (THINK, "</think>\n\n4", None, [("text", "4")]),
    "marks within thoughts": (THINK, "<think><think>a</think>b</think>", None,
                              [("thought", "<think>a"), ("text", "b</think>")]),
    "nothing": (THINK, "", None, []),
    "spaces": (THINK, " \n ", None, [("text", " \n ")]),
    "harmony": (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "More.<|end|><|start|>assistant<|channel|>final<|message|>4<|return|>",
        None,
        [("thought", "Hm.More."), ("text", "4")],
    ),
    "harmony's preamble": (
        HARMONY,
        "<|channel|>commentary<|message|>I shall look.<|end|>"
        "<|start|>assistant<|channel|>final<|message|> 4",
        None,
        [("text", "I shall look.4")],
    ),
    "gemma twice": (
        GEMMA, "<|channel>thought\na\n<channel|>b<|channel>thought\nc<channel|>d", None,
        [("thought", "a"), ("text", "b"), ("thought", "c"), ("text", "d")],
    ),
    "command": (
        COMMAND,
        "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b <c><|END_RESPONSE|>",
        None,
        [("thought", "a"), ("text", "b <c>")],
    ),
    "command without thought": (COMMAND, "<|START_RESPONSE|>b<|END_RESPONSE|>", None,
                                [("text", "b")]),
    "mistral": (MISTRAL, "[THINK]a[/THINK]b", None, [("thought", "a"), ("text", "b")]),
    "granite": (
        GRANITE, "Here is my thought process:\n\na: b.\n\nHere is my response:\n\nc", None,
        [("thought", "a: b."), ("text", "c")],
    ),
    "granite's tags": (
        GRANITE_TAGS, "<think>a</think><response>b\n</response>", None,
        [("thought", "a"), ("text", "b\n")],
    ),
    "to oneself": (
        TO_SELF,
        " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b<|eot|>",
        None,
        [("thought", "a"), ("text", "b")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_splitting(case: str) -> None:
    reasoning, text, state, expected = CASES[case]
    state = state or ThoughtState.UNDECIDED
    assert split(reasoning, [text], state) == expected
    assert split(reasoning, text, state) == expected
    for size in (2, 3, 7):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert split(reasoning, pieces, state) == expected


def test_parts_come_as_soon_as_they_are_certain() -> None:
    splitter = ReasoningSplitter(THINK)
    assert joined(splitter.push("<think>\nOne")) == [("thought", "One")]
    assert joined(splitter.push(" two \n")) == [("thought", " two")]
    assert joined(splitter.push("<")) == []
    assert joined(splitter.push("b")) == [("thought", " \n<b")]
    assert joined(splitter.push("</think>")) == []
    assert joined(splitter.push("\n\nFour")) == [("text", "Four")]
    assert joined(splitter.push(" ")) == [("text", " ")]
    assert splitter.finish() == []


@pytest.mark.parametrize(
    ("reasoning", "prompt_end", "state"),
    [
        (THINK, "<|im_start|>assistant\n", ThoughtState.UNDECIDED),
        (THINK, "<|im_start|>assistant\n<think>\n", OPEN),
        (THINK, "<|im_start|>assistant\n<think>\nLet me", OPEN),
        (THINK, "<|im_start|>assistant\n<think>\n\n</think>\n\n", CLOSED),
        (THINK, "<think>a</think>\n\nThe answer is", ThoughtState.ANSWER),
        (THINK, "<｜Assistant｜></think>", CLOSED),
        (HARMONY, "<|start|>assistant", ThoughtState.UNDECIDED),
        (HARMONY, "<|start|>assistant<|channel|>analysis<|message|>a", OPEN),
        (HARMONY, "<|start|>assistant<|channel|>final<|message|>", CLOSED),
        (COMMAND, "<|CHATBOT_TOKEN|><|START_RESPONSE|>", CLOSED),
    ],
)
def test_the_prompts_end(reasoning: ReasoningFormat, prompt_end: str, state: ThoughtState) -> None:
    assert reasoning.state_after(prompt_end) is state


def test_marks() -> None:
    assert THINK.control_texts == {"<think>", "</think>"}
    assert GEMMA.control_texts == {"<|channel>", "<channel|>"}
    assert MISTRAL.control_texts == {"[THINK]", "[/THINK]"}
    assert GRANITE.control_texts == frozenset()
    assert {"<|channel|>", "<|message|>", "<|end|>", "<|start|>"} <= HARMONY.control_texts
    assert THINK.open_texts[0] == "<think>"
    assert THINK.marks == ("<think>", "</think>")


def test_templates_without_thoughts() -> None:
    assert reasoning_format("{{ messages[0].content }}") is None


def test_results_of_tools_are_not_marks_of_answers() -> None:
    source = "<think></think> <minimax:tool_call> <response>{{ m.content }}</response>"
    reasoning = reasoning_format(source)
    assert reasoning is not None
    assert reasoning.marks == ("<think>", "</think>")
