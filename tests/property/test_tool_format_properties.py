"""What holds for any output and any format of tool calls."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.text.tool_output_cases import BY_NAME, CASES
from support.text.tool_outputs import Found, found, parse, tool_use

from potluck.text.tool_formats import choose_output_format
from potluck.types.output import OutputFormat, OutputPart, ToolUse

NAMES = sorted(BY_NAME)
MARKS = sorted(
    {mark for case in CASES for mark in re.findall(r"<[^<>\s]+>|\[[A-Z_]+\]", case.calls)}
)
FRAGMENTS = (
    *MARKS,
    *(each for case in CASES for each in (case.first, case.second) if each),
    *"{}[]()\"':,=\\<>|`",
    *("get_weather", "clock", "rm", "city", "name", "arguments", "parameters", "function", "call:"),
    *(
        '"name": ',
        '"clock"',
        '"arguments": ',
        '"city"',
        "\\u12",
        "\\ud834",
        "\n",
        "  ",
        "1",
        "-0.5",
    ),
    *(
        "true",
        "None",
        "null",
        "Žilina 😀",
        "\x00",
        "\u2028",
        "functions.",
        "to=",
        "<think>",
        "</thi",
        "<|start|>",
        "<|start|>assistant",
        "<|s",
    ),
    *("</think>", '{"name": "clock", "arguments": {}}', "I look.", "functools", "```json"),
)
TEXTS = st.lists(
    st.one_of(
        st.sampled_from(FRAGMENTS), st.text(st.characters(exclude_characters="~"), max_size=3)
    ),
    max_size=24,
).map("".join)
CUTS = st.lists(st.integers(1, 40), max_size=30)


@st.composite
def mutated_calls(draw: st.DrawFn) -> str:
    """A well-formed output with some of it taken out, repeated or replaced."""
    text = draw(st.sampled_from([case.calls for case in CASES]))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 12)))
        text = (
            text[:start] + draw(st.sampled_from(("", text[start:end] * 2, *FRAGMENTS))) + text[end:]
        )
    return text


@cache
def output_format(name: str, *, thinks: bool = False) -> OutputFormat:
    sign = BY_NAME[name].sign + ("</think>" if thinks else "")
    return choose_output_format(sign, (), tool_format=name)


def in_pieces(each: OutputFormat, text: str, cuts: list[int], *, is_cut: bool) -> Found:
    parser = each.parser(tool_use(), prompt_end="")
    parts: list[OutputPart] = []
    position = 0
    for length in cuts:
        parts += parser.push(text[position : position + length])
        position += length
    parts += parser.push(text[position:])
    return found([*parts, *parser.finish(is_cut=is_cut)])


def visible(text: str) -> str:
    return "".join(text.split())


@pytest.mark.slow
@pytest.mark.parametrize("thinks", [False, True])
@settings(max_examples=30)
@given(text=st.one_of(TEXTS, mutated_calls()), cuts=CUTS, is_cut=st.booleans())
def test_pieces_do_not_matter(thinks: bool, text: str, cuts: list[int], is_cut: bool) -> None:
    for name in NAMES:
        each = output_format(name, thinks=thinks)
        whole = parse(each, text, is_cut=is_cut)
        assert in_pieces(each, text, cuts, is_cut=is_cut) == whole, name
        assert parse(each, text, 1, is_cut=is_cut) == whole, name


@settings(max_examples=30)
@given(text=st.one_of(TEXTS, mutated_calls()))
def test_nothing_is_lost(text: str) -> None:
    """What is no call is text, character by character; a call's text is what it was made of."""
    for name in NAMES:
        if name == "harmony":
            continue
        parts = parse(output_format(name), text)
        rest = visible(text)
        for part in parts:
            if isinstance(part, str) and part.strip():
                assert visible(part) in rest, name
                _, _, rest = rest.partition(visible(part))
        if not any(isinstance(part, tuple) for part in parts):
            assert "".join(map(str, parts)) == text, name


@pytest.mark.slow
@settings(max_examples=40)
@given(before=TEXTS, after=TEXTS)
def test_a_call_is_found_within_any_text(before: str, after: str) -> None:
    for name in NAMES:
        check_that_a_call_is_found(name, before, after)


def check_that_a_call_is_found(name: str, before: str, after: str) -> None:
    case = BY_NAME[name]
    if name in ("llama", "pythonic", "json", "harmony"):
        before = ""
    elif any(character in before for character in "<[({\"'｜") or "functools" in before:
        before = visible(re.sub(r"[^\w\s]", "", before)).replace("functools", "")
    parts = parse(output_format(name), before + case.calls + "\n\n" + re.sub(r"\W", "", after))
    calls = [part for part in parts if isinstance(part, tuple)]
    expected = ["get_weather", *(["clock"] if case.second else [])]
    assert [call[0] for call in calls] == expected, name
    for _, arguments in calls:
        json.loads(arguments)


@pytest.mark.slow
@settings(max_examples=30)
@given(text=st.one_of(TEXTS, mutated_calls()))
def test_without_tools_all_is_text(text: str) -> None:
    for name in NAMES:
        if name == "harmony":
            continue
        parser = output_format(name).parser(ToolUse(), prompt_end="")
        parts = [part for character in text for part in parser.push(character)]
        assert "".join(map(str, found([*parts, *parser.finish()]))) == text, name
