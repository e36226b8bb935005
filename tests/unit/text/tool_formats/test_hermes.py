"""Tool calls of the Hermes form."""

from __future__ import annotations

import pytest
from support.text.tool_outputs import parse, tool_use

from potluck.text.tool_formats import choose_output_format

FORMAT = choose_output_format("{{ '<tool_call>' }} </think>", ())
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Žilina"}}\n</tool_call>'
WEATHER = ("get_weather", '{"city": "Žilina"}')

CASES = {
    "text": ("Hello.\n", ["Hello.\n"]),
    "one call": (CALL, [WEATHER]),
    "text, then calls": (f"I look.\n\n{CALL}\n{CALL}\n", ["I look.", WEATHER, WEATHER]),
    "thought": (f"<think>\nHm.\n</think>\n\n{CALL}", ["~Hm.", WEATHER]),
    "text after": (f"{CALL}\n\nDone. ", [WEATHER, "\n\nDone. "]),
    "arguments first": (
        '<tool_call>{"arguments": {"city": "Žilina"}, "name": "get_weather"}</tool_call>',
        [WEATHER],
    ),
    "arguments as text": (
        r'<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Žilina\"}"}</tool_call>',
        [WEATHER],
    ),
    "arguments as text with half of a surrogate pair": (
        r'<tool_call>{"name": "clock", "arguments": "{\"a\": \"\ud83d\ude00\udc00\"}"}</tool_call>',
        [("clock", r'{"a": "😀\udc00"}')],
    ),
    "no arguments": ('<tool_call>{"name": "clock"}</tool_call>', [("clock", "{}")]),
    "null": ('<tool_call>{"name": "clock", "arguments": null}</tool_call>', [("clock", "{}")]),
    "no end mark": (CALL.removesuffix("\n</tool_call>"), [WEATHER]),
    "other keys": (
        '<tool_call>{"id": [1, {}], "name": "clock", "arguments": {}, "x": 1}</tool_call>',
        [("clock", "{}")],
    ),
    "as OpenAI": (
        '<tool_call>{"type": "function", "function": {"name": "clock", "arguments": {}}}'
        "</tool_call>",
        [("clock", "{}")],
    ),
    "several in one": (
        '<tool_call>\n{"name": "clock", "arguments": {}}\n{"name": "clock", "arguments": {"a": 1}}'
        "\n</tool_call>",
        [("clock", "{}"), ("clock", '{"a": 1}')],
    ),
    "raw line ends": (
        '<tool_call>{"name": "clock", "arguments": {"a": "1\n2\\d\'"}}</tool_call>',
        [("clock", '{"a": "1\\n2\\\\d\'"}')],
    ),
    "Python's literals": (
        '<tool_call>{"name": "clock", "arguments": {\'a\': True, \'b\': [None, \'x"\']}}',
        [("clock", '{"a": true, "b": [null, "x\\""]}')],
    ),
    "unknown tool": (
        '<tool_call>{"name": "rm", "arguments": {}}</tool_call>',
        ['<tool_call>{"name": "rm", "arguments": {}}</tool_call>'],
    ),
    "no JSON": ("<tool_call>call f\n</tool_call>", ["<tool_call>call f\n</tool_call>"]),
    "malformed, then well-formed": (f"<tool_call>\n{CALL}", ["<tool_call>", WEATHER]),
    "list for arguments": (
        '<tool_call>{"name": "clock", "arguments": []}',
        ['<tool_call>{"name": "clock", "arguments": []}'],
    ),
    "cut off before": ('<tool_call>\n{"name": "clo', ['<tool_call>\n{"name": "clo']),
    "cut off in the arguments": (
        '<tool_call>\n{"name": "clock", "arguments": {"a": tr',
        [("clock", '{"a": tr')],
    ),
    "cut off in an escape": (
        '<tool_call>\n{"name": "clock", "arguments": {"a": "\\u12',
        [("clock", '{"a": "\\u12')],
    ),
    "malformed in the arguments": (
        '<tool_call>\n{"name": "clock", "arguments": {"a": maybe, "b": 1}}\n</tool_call>x',
        [("clock", '{"a": '), 'maybe, "b": 1}}\n</tool_call>x'],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_output_is_taken_apart(name: str) -> None:
    text, expected = CASES[name]
    assert parse(FORMAT, text) == expected


@pytest.mark.parametrize("name", CASES)
def test_pieces_do_not_matter(name: str) -> None:
    text, expected = CASES[name]
    for size in (1, 2, 3, 7):
        assert parse(FORMAT, text, size) == expected, size


def test_arguments_come_at_once() -> None:
    parser = FORMAT.parser(tool_use(), prompt_end="")
    parser.push('<tool_call>\n{"name": "clock", "arguments": {"a": "on')
    (part,) = parser.push("e two")
    assert part.text == "e two"  # type: ignore[union-attr]
