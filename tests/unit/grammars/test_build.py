"""Grammars from what clients write: which texts they match."""

from __future__ import annotations

import json
import time

import pytest
from support.text.grammars import BYTES, matches

from potluck.errors import ParameterError
from potluck.grammars import build
from potluck.grammars.matchers import Matchers

PERSON = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        (
            build.json_schema({**PERSON, "required": ["a"], "additionalProperties": False}),
            ['{"a":1}', '{"a": 1, "b": "x y"}', '{"a":1,\n  "b":"\\n"}'],
            ["{}", '{"b":"x"}', '{"a":1.5}', '{"a":1,"c":2}', ' {"a":1}', '{"a":1} ', '{"a":1'],
        ),
        (build.json_object(), ["{}", '{"x":[1,{"y":null}]}'], ["[]", "1", '"x"', "{,}"]),
        (build.json_schema(True), ["1", "[]", '"x"', "null"], ["x"]),
        (build.regex(r"[a-c]{2}/\d+"), ["ab/1", "cc/123"], ["ab", "ab/", "abc/1"]),
        (build.regex("a\nb"), ["a\nb"], ["a", "anb"]),
        (build.regex(r"\/[/]"), ["//"], ["/"]),
        (
            build.choice(["yes", "no", 'say "é"\n', "yes!", "\x7f\x00"]),
            ["yes", "no", 'say "é"\n', "yes!", "\x7f\x00"],
            ["ye", "maybe", "yes!!", ""],
        ),
        (build.ebnf('root ::= "a"+ tail?\ntail ::= [0-9]{2}'), ["a", "aa12"], ["", "a1", "12"]),
        (build.ebnf('start: "a"+ TAIL?\nTAIL: /[0-9]{2}/'), ["a", "aa12"], ["", "a1", "12"]),
    ],
)
def test_what_a_grammar_matches(grammar: str, good: list[str], bad: list[str]) -> None:
    for text in good:
        assert matches(grammar, text), text
    for text in bad:
        assert not matches(grammar, text), text


def test_white_space_in_documents_is_bounded() -> None:
    grammar = build.json_schema(PERSON)
    assert matches(grammar, '{"a":1,\n' + " " * 20 + '"b":"x"}')
    assert not matches(grammar, '{"a":1,\n' + " " * 21 + '"b":"x"}')
    assert not matches(grammar, '{"a":  1}')
    assert not matches(grammar, "{ }")


def test_a_clients_own_options_of_the_library_count_for_nothing() -> None:
    grammar = build.json_schema({"type": "array", "x-guidance": {"whitespace_flexible": True}})
    assert not matches(grammar, "[   ]")


def test_parts_are_referred_to_by_name() -> None:
    inner = build.combined('start: "<" @body ">"', {"body": build.json_schema({"type": "null"})})
    grammar = build.combined(
        'start: @call | @body "@call"\n', {"call": inner, "body": build.choice(["x"])}
    )
    assert matches(grammar, "<null>")
    assert matches(grammar, "x@call")
    assert not matches(grammar, "null@call")
    names = [each["name"] for each in json.loads(grammar)["grammars"]]
    assert len(set(names)) == len(names)


def test_control_tokens_are_named_and_never_spelled() -> None:
    named = Matchers(BYTES).take(build.lark(f'start: {build.control_token("[TOOL]")} "x"'))
    assert named.accept(257)
    assert named.accept(ord("x"))
    assert named.is_accepting
    spelled = Matchers(BYTES).take(build.lark('start: "[TOOL]<|im_end|>"'))
    assert not spelled.accept(257)
    assert matches(build.lark('start: "[TOOL]<|im_end|>"'), "[TOOL]<|im_end|>")


def test_malformed_grammars_are_refused() -> None:
    with pytest.raises(ParameterError, match="no choices"):
        build.choice([])
    with pytest.raises(ParameterError, match="'nope' not found"):
        build.ebnf('root ::= "a" nope')
    with pytest.raises(ParameterError, match="nested too deeply"):
        build.ebnf("root ::= " + "(" * 5000 + '"a"' + ")" * 5000)
    with pytest.raises(ParameterError, match="characters"):
        build.ebnf('root ::= "a"\n' + "\n".join(f'r{i} ::= "a"' for i in range(10_000)))


@pytest.mark.parametrize(
    "source", ["\n" * 40_000, 'start: "' + '\\"' * 40_000, "start: /" + "\\/" * 40_000]
)
def test_unusual_grammars_take_linear_time(source: str) -> None:
    started = time.thread_time()
    assert source in json.loads(build.ebnf(source))["grammars"][0]["lark_grammar"]
    build.combined("start: @part\n", {"part": build.lark(source)})
    assert time.thread_time() - started < 5  # quadratic time is minutes


def test_integers_have_bounds() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": ["integer", "null"]},
            "b": {"$ref": "#/$defs/b"},
            "c": {"const": {"type": "integer"}},
            "d": {"type": "array", "items": {"anyOf": [{"type": "integer", "minimum": 5}]}},
        },
        "required": ["a", "b", "c", "d"],
        "additionalProperties": False,
        "$defs": {"b": {"type": "integer"}},
    }
    grammar = build.json_schema(schema)
    most, too_much = "9" * 15, "1" + "0" * 15
    for a, b, d, is_good in (
        (most, "-" + most, most, True),
        ("null", "0", "5", True),
        (too_much, "0", "5", False),
        ("0", "-" + too_much, "5", False),
        ("0", "0", too_much, False),
        ("0", "0", "4", False),
    ):
        text = f'{{"a":{a},"b":{b},"c":{{"type":"integer"}},"d":[{d}]}}'
        assert matches(grammar, text) == is_good, text
    assert matches(build.json_schema({"type": ["integer", "number"]}), too_much)
    assert matches(build.json_schema({"type": "integer", "maximum": 10**16}), too_much)


def test_deep_schemas_are_refused() -> None:
    schema: dict[str, object] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(ParameterError, match="deep"):
        build.json_schema(schema)
    with pytest.raises(ParameterError, match="deep"):
        build.json_schema({"allOf": [True], "default": schema})


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "object", "properties": {"a": {}}}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
        ({"type": "object", "properties": {}}, ["{}"], ['{"a":1}']),
        (
            {"type": "array", "items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"properties": {}}}},
            ["[{}]"],
            ['[{"a":1}]'],
        ),
        # Where the schema speaks of others, or lists them elsewhere, it says what is allowed.
        ({"type": "object"}, ['{"a":1}'], []),
        ({"type": "object", "properties": {}, "additionalProperties": True}, ['{"a":1}'], []),
        ({"type": "object", "properties": {}, "required": ["a"]}, ['{"a":1}'], ["{}"]),
        (
            {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]},
            ['{"a":1,"b":2}'],
            ['{"a":1}'],
        ),
    ],
)
def test_objects_have_the_properties_that_are_listed(
    schema: dict[str, object], good: list[str], bad: list[str]
) -> None:
    grammar = build.json_schema(schema)
    assert [text for text in good if not matches(grammar, text)] == []
    assert [text for text in bad if matches(grammar, text)] == []
