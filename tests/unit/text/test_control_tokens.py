"""Texts of others, kept apart from control tokens."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from potluck.errors import ParameterError
from potluck.text.control_tokens import (
    ControlTokenEscaper,
    parse_arguments,
    texts_of,
    texts_of_message,
)
from potluck.types.text import ChatMessage, Tool, ToolCall

CONTROL = ("<|im_start|>", "<|im_end|>", "<|object_ref|>", "<tool_call>", "USER")


def make_escaper(*used: str, is_strict: bool = False) -> ControlTokenEscaper:
    return ControlTokenEscaper(control_texts=CONTROL, used=used, is_strict=is_strict)


def literal_parts(escaped: str, escaper: ControlTokenEscaper) -> tuple[str, list[str]]:
    """The text, and the characters in it that were escaped."""
    text, literal = escaper.unescape(escaped)
    return text, [text[index] for index in literal]


def test_whole_texts_and_their_pieces_at_the_borders() -> None:
    escaper = make_escaper()
    for content, touched in (
        ("a<|im_end|>b<|im_start|>", "<<"),
        ("<|im_", "<"),
        ("end|> and <", "e<"),
        ("plain < text", ""),
        ("_", "_"),
        ("\n", ""),
        ("", ""),
    ):
        escaped = escaper.escape(content)
        assert len(escaped) == len(content)
        assert literal_parts(escaped, escaper) == (content, list(touched))


def test_values_of_tools_are_escaped_at_all_depths() -> None:
    escaper = make_escaper()
    attack = "<|im_end|>"
    tool = Tool(
        name="look" + attack,
        description=attack,
        parameters={"type": "object", attack: [{"a": [attack, 1, None, True, 2.5]}]},
    )
    escaped = escaper.escape_tool(tool)
    assert attack not in json.dumps([escaped.name, escaped.description, dict(escaped.parameters)])
    assert escaped.parameters["type"] == "object"
    restored, literal = escaper.unescape(json.dumps(escaped.parameters, ensure_ascii=False))
    assert json.loads(restored) == tool.parameters
    assert len(literal) == 2


def test_a_long_control_token_is_searched_without_a_copy_of_each_of_its_pieces() -> None:
    long = "<|" + "long" * 5_000 + "|>"
    tracemalloc.start()
    escaper = ControlTokenEscaper(control_texts=[long, *CONTROL], used=())
    escaped = escaper.escape(f"{long[9000:]} and {long[:9000]}")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert literal_parts(escaped, escaper)[1] == [long[9000], "<"]
    assert peak < 4_000_000


def test_calls_results_and_thoughts_are_escaped() -> None:
    escaper = make_escaper()
    attack = "<|im_end|>"
    message = ChatMessage(
        role="assistant",
        content=attack,
        name=attack,
        tool_calls=(
            ToolCall(call_id=attack, name=attack, arguments='{"a": {"b": ["\\u003c|im_end|>"]}}'),
            ToolCall(call_id="1", name="x", arguments=f"not JSON {attack}"),
            ToolCall(call_id="2", name="y", arguments=' {"kept" :1}'),
        ),
        tool_call_id=attack,
        reasoning=attack,
    )
    escaped = escaper.escape_message(message)
    assert not any(attack in text for text in texts_of_message(escaped))
    assert escaper.unescape(escaped.tool_calls[0].arguments)[0] == '{"a": {"b": ["<|im_end|>"]}}'
    assert escaped.tool_calls[2] == message.tool_calls[2]
    assert attack in list(texts_of_message(message))


def test_words_of_schemas_are_left_alone_unless_they_are_control_tokens() -> None:
    escaper = make_escaper()
    value = {"type": "object", "role": "USER", "name": "tool_call"}
    escaped = escaper.escape_object(value, parameter="tools")
    assert escaped["type"] == "object"
    assert escaped["name"] == "tool_call"
    assert escaped["role"] != "USER"
    assert escaper.has_left_words
    strict = make_escaper(is_strict=True)
    escaped = strict.escape_object(value, parameter="tools")
    assert escaped["type"] != "object"
    assert not strict.has_left_words


def test_characters_that_are_used_stand_for_nothing() -> None:
    escaper = make_escaper("\U00020000 \U00020002", "\U00020001")
    assert escaper.escape("<|im_end|>").startswith("\U00020003")
    assert escaper.free_character() == "\U00020004"


def test_stand_ins_are_written_as_they_are() -> None:
    character = make_escaper().free_character()
    assert repr([character])[2:-2] == character
    assert json.dumps(character, ensure_ascii=False)[1:-1] == character
    assert character.upper() == character.lower() == character.strip() == character


def test_values_of_other_types_are_refused() -> None:
    with pytest.raises(ParameterError, match="set") as error:
        make_escaper().escape_object({"a": [{1}]}, parameter="chat_template_kwargs")
    assert error.value.name == "chat_template_kwargs"


def test_values_that_are_nested_deeply_are_refused() -> None:
    value: dict[str, object] = {}
    for _ in range(10_000):
        value = {"a": value}
    with pytest.raises(ParameterError, match="64 levels"):
        make_escaper().escape_object(value, parameter="tools")
    text = '{"a":' * 70 + "1" + "}" * 70
    message = ChatMessage(
        role="assistant", content="", tool_calls=(ToolCall(call_id="", name="", arguments=text),)
    )
    with pytest.raises(ParameterError, match="64 levels"):
        make_escaper().escape_message(message)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (" \n", {}),
        ("[1]", None),
        ("{", None),
        ("1" * 5000, None),
        ('{"a":' * 100_000, None),
        ('{"a":' * 500 + "[{}]" + "}" * 500, None),
        ('{"a": [[0], {"b": [1]}]}', {"a": [[0], {"b": [1]}]}),
    ],
)
def test_arguments(text: str, expected: object) -> None:
    assert parse_arguments(text) == expected


def test_texts_of_values() -> None:
    assert sorted(texts_of({"a": ["b", {"c": "d"}, 1, None], "e": ("f",)})) == list("abcdef")
