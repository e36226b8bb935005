"""Arguments that are not written as JSON: what their schemas say."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from support.text.grammar_texts import grammar_texts
from support.text.tool_output_cases import BY_NAME
from support.text.tool_outputs import found

from potluck.errors import ParameterError
from potluck.text.tool_formats import choose_output_format
from potluck.text.tool_formats.schemas import argument_json, branches, types_of
from potluck.types.output import OutputFormat, ToolMode, ToolUse
from potluck.types.text import Tool

NODE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
    },
    "required": ["name"],
}
WIDE: dict[str, Any] = {
    f"a{index}": {"anyOf": [{"$ref": f"#/$defs/a{(index + step) % 8}"} for step in range(8)]}
    for index in range(8)
}


def tool_with(schema: object, **others: object) -> Tool:
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"], **others}
    return Tool(name="f", parameters=parameters)


def format_named(name: str) -> OutputFormat:
    return choose_output_format("", (), tool_format=name)


def value_of(name: str, text: str, schema: object, **others: object) -> object:
    """The argument that a parser makes of ``text``."""
    use = ToolUse(tools=(tool_with(schema, **others),))
    parser = format_named(name).parser(use, prompt_end="")
    (call,) = found([*parser.push(written(name, text)), *parser.finish()])
    return json.loads(call[1])["v"]


def written(name: str, text: str) -> str:
    return {
        "qwen-coder": "<tool_call>\n<function=f>\n<parameter=v>\n{}\n</parameter>\n</function>\n"
        "</tool_call>",
        "glm": "<tool_call>f\n<arg_key>v</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
        "gemma": "<|tool_call>call:f{{v:{}}}<tool_call|>",
        "lfm2": "<|tool_call_start|>[f(v={})]<|tool_call_end|>",
        "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"v": {}}}}}\n</tool_call>',
    }[name].format(text)


def allows(name: str, text: str, schema: object, **others: object) -> bool:
    use = ToolUse(tools=(tool_with(schema, **others),), mode=ToolMode.REQUIRED)
    grammar = format_named(name).grammar(use, prompt_end="")
    assert grammar is not None
    return grammar_texts().allows(grammar, written(name, text))


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": "string"}, "12", "12"),
        ({"type": "string"}, ' a "b"\n\n', ' a "b"\n\n'),
        ({"type": "integer"}, "12", 12),
        ({"type": "number"}, "x", "x"),
        ({"type": "boolean"}, "True", True),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "12", "12"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "12", 12),
        ({"enum": ["a", 1]}, "1", 1),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"const": "null"}, "null", "null"),
        ({"type": "object"}, "{'a': None}", {"a": None}),
        ({"type": "array"}, '[1, "b"]', [1, "b"]),
        ({}, "12", 12),
        ({}, "12a", "12a"),
        ({"$ref": "#/$defs/t"}, "12", "12"),
        ({"$ref": "#/$defs/none"}, "12", 12),
        (True, "12", 12),
    ],
)
def test_values_are_of_their_types(schema: object, text: str, expected: object) -> None:
    others = {"$defs": {"t": {"type": "string"}}}
    assert value_of("qwen-coder", text, schema, **others) == expected
    assert value_of("glm", text, schema, **others) == expected


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, ["", "a\nb", "12"], []),
        ({"type": "string", "enum": ["a", "b c"]}, ["a", "b c"], ["", "c"]),
        ({"const": "a"}, ["a"], ["b"]),
        ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "abc"], ["a", "abcd"]),
        ({"type": "string", "pattern": "^a/[0-9]+$"}, ["a/12"], ["a/", "xa/1", "a/1x"]),
        ({"type": "string", "pattern": "b"}, ["b", "abc"], ["ac"]),
        ({"type": "string", "pattern": "b", "maxLength": 2}, ["ab"], ["abc", "a"]),
        ({"type": "string", "format": "date", "description": "d"}, ["2026-01-01"], []),
        ({"type": "integer", "minimum": 3}, ["3", "12"], ["2", "x", "3.5"]),
        ({"type": ["integer", "null"]}, ["3", "null"], ["x"]),
        ({"anyOf": [{"enum": ["a"]}, {"type": "integer"}]}, ["a", "3"], ["b"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[1, 2]", "[]"], ["1", '["a"]']),
        ({"$ref": "#/$defs/t"}, ["a"], ["b"]),
        ({"type": "array", "items": {"$ref": "#/$defs/t"}}, ['["a"]'], ['["b"]']),
    ],
)
def test_grammar_heeds_the_schema(schema: object, allowed: list[str], refused: list[str]) -> None:
    others = {"$defs": {"t": {"enum": ["a"]}}}
    for text in allowed:
        assert allows("qwen-coder", text, schema, **others), text
        assert allows("glm", text, schema, **others), text
    for text in refused:
        assert not allows("qwen-coder", text, schema, **others), text
        assert not allows("glm", text, schema, **others), text


@pytest.mark.parametrize(
    ("schema", "allowed", "refused"),
    [
        ({"type": "string"}, ['<|"|>a "b"\n<|"|>', '<|"|><|"|>'], ["a", "1"]),
        ({"type": "string", "maxLength": 1}, ['<|"|>a<|"|>'], ['<|"|>ab<|"|>']),
        ({"type": "integer", "maximum": 3}, ["3", "-12"], ["4", "3.5"]),
        (
            {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
            ["[1]", "[1,2]"],
            ["[]", "[1,2,3]"],
        ),
        ({"type": "array"}, ['[1,<|"|>a<|"|>,{b:[]}]', "[]"], ["{}"]),
        ({"type": "object"}, ["{}", '{a:1,b:{c:null,d:<|"|>x<|"|>}}'], ["[]"]),
        ({}, ["1", "{}", "[true]", '<|"|>a<|"|>'], [""]),
        (NODE, ['{name:<|"|>a<|"|>}', '{name:<|"|>a<|"|>,next:null}'], ["{}", "{next:null}"]),
        (
            {"$ref": "#/$defs/node"},
            ['{name:<|"|>a<|"|>,next:{name:<|"|>b<|"|>,next:{name:<|"|>c<|"|>}}}'],
            ['{name:<|"|>a<|"|>,next:{next:null}}'],
        ),
        ({"type": ["string", "null"]}, ["null", '<|"|>a<|"|>'], ["1"]),
        (
            {"type": "object", "properties": {"a": {}, "b": {"type": "null"}, "c": {}},
             "required": ["b"]},
            ["{b:null}", "{a:1,b:null,c:2}", "{b:null,c:2}"],
            ["{}", "{a:1}", "{,b:null}"],
        ),
    ],
)  # fmt: skip
def test_gemma_heeds_the_schema(schema: object, allowed: list[str], refused: list[str]) -> None:
    for text in allowed:
        assert allows("gemma", text, schema, **{"$defs": {"node": NODE}}), text
    for text in refused:
        assert not allows("gemma", text, schema, **{"$defs": {"node": NODE}}), text


@pytest.mark.parametrize(
    ("name", "schema", "keyword"),
    [
        ("gemma", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("gemma", {"type": "object", "properties": {}, "minProperties": 1}, "minProperties"),
        ("gemma", {"type": "string", "contentEncoding": "base64"}, "contentEncoding"),
        ("qwen-coder", {"type": "string", "not": {}}, "not"),
    ],
)
def test_keywords_that_are_not_supported_are_named(name: str, schema: object, keyword: str) -> None:
    with pytest.raises(ParameterError, match=f"uses {keyword}"):
        allows(name, "1", schema)


@pytest.mark.parametrize("name", ["qwen-coder", "gemma"])
def test_keywords_of_all_arguments_are_named(name: str) -> None:
    with pytest.raises(ParameterError, match="the arguments of f uses minProperties"):
        allows(name, "1", {}, minProperties=3)


@pytest.mark.parametrize(
    "parameters",
    [
        {"$defs": WIDE, "properties": {"v": {"$ref": "#/$defs/a0"}}},
        {"properties": {"v": {"$ref": "#/properties/v"}}},
        {"properties": {"v": {"$ref": "#/$defs/x/y"}, "w": {"$ref": "http://x"}, "u": {"$ref": 3}}},
        {"properties": [1], "required": "v", "type": ["object"]},
        {"properties": {"v": {"type": ["a", 3, None], "anyOf": [], "enum": 3}}, "required": [1]},
        {"properties": {"v": {"type": "string", "minLength": -1}}},
        {"properties": {"v": {"type": "string", "maxLength": 10**9}}},
        {"properties": {"v": {"type": "array", "minItems": "3", "maxItems": True}}},
        {"properties": {"v": {"type": "string", "pattern": "("}}},
        {"properties": {"\n<": {"type": "string", "enum": []}, "": {"enum": [{}, [], None]}}},
    ],
)
def test_strange_schemas_do_no_harm(parameters: dict[str, object]) -> None:
    """In any format."""
    use = ToolUse(tools=(Tool(name="f", parameters=parameters),), mode=ToolMode.REQUIRED)
    for name in sorted(BY_NAME):
        started = time.process_time()
        with contextlib.suppress(ParameterError):
            format_named(name).grammar(use, prompt_end="")
        parser = format_named(name).parser(use, prompt_end="")
        parser.push(BY_NAME[name].calls.replace("get_weather", "f").replace("city", "v"))
        parser.finish()
        assert time.process_time() - started < 2, name


@pytest.mark.parametrize("name", ["gemma", "qwen-coder", "lfm2", "hermes"])
def test_definitions_are_those_of_the_tool(name: str) -> None:
    def tool(called: str, kind: str) -> Tool:
        parameters = tool_with({"$ref": "#/$defs/t"}, **{"$defs": {"t": {"type": kind}}}).parameters
        return Tool(name=called, parameters=parameters)

    use = ToolUse(tools=(tool("g", "integer"), tool("f", "null")), mode=ToolMode.REQUIRED)
    grammar = format_named(name).grammar(use, prompt_end="")
    assert grammar is not None
    assert grammar_texts().allows(grammar, written(name, "null"))
    assert not grammar_texts().allows(grammar, written(name, "1"))


@pytest.mark.parametrize(
    ("name", "schema", "definition"),
    [
        ("qwen-coder", {"type": "integer"}, {"description": "x" * 2**20}),
        ("lfm2", {"type": "integer"}, {"description": "x" * 2**20}),
        ("glm", {"$ref": "#/$defs/t"}, {"enum": ["x" * 2**20]}),
        ("gemma", {"$ref": "#/$defs/t"}, {"type": "string", "const": "x" * 2**20}),
        ("gemma", {"$ref": "#/$defs/t"}, {"type": "string", "pattern": "x" * 2**20}),
    ],
)
def test_definitions_are_not_repeated_for_gigabytes(
    name: str, schema: dict[str, object], definition: dict[str, object]
) -> None:
    properties = {f"v{number}": {**schema, "title": f"{number}"} for number in range(20)}
    parameters = {"properties": properties, "$defs": {"t": definition}}
    use = ToolUse(tools=(Tool(name="f", parameters=parameters),), mode=ToolMode.REQUIRED)
    with pytest.raises(ParameterError, match="too large"):
        format_named(name).grammar(use, prompt_end="")


def test_branches_are_bounded() -> None:
    assert branches({"$ref": "#/$defs/a0"}, {"$defs": WIDE}) == [{}]
    assert types_of({"$ref": "#/$defs/a0"}, {"$defs": WIDE}) == frozenset()


def test_deep_values_are_texts() -> None:
    deep = "[" * 100_000
    assert json.loads(argument_json(deep, frozenset(("array",)))) == deep
