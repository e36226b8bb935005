"""All formats of tool calls: outputs as models write them, and the grammars."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import replace

import jsonschema
import pytest
from support.processes.proportion import assert_in_proportion
from support.text.grammar_texts import grammar_texts
from support.text.tool_output_cases import BY_NAME, CASES, WEATHER_ARGUMENTS, OutputCase
from support.text.tool_outputs import TOOLS, Found, parse, tool_use

from potluck.errors import ParameterError
from potluck.text.template_gaps import fill_gaps
from potluck.text.tool_formats import FORMAT_NAMES, choose_output_format
from potluck.text.tool_formats.choice import FORMATS
from potluck.text.tool_formats.json_calls import NamedCalls
from potluck.types.output import OutputFormat, ToolMode, ToolUse
from potluck.types.text import ChatMessage, Tool

SCHEMAS = {tool.name: tool.parameters for tool in TOOLS}
REQUIRED = tool_use(ToolMode.REQUIRED)
NAMES = sorted(BY_NAME)


def format_of(case: OutputCase, *, is_control: bool = False) -> OutputFormat:
    control = case.control if is_control else ()
    return choose_output_format(
        f"{{{{ {case.sign!r} }}}}".replace("\\n", "\n"), control, tool_format=case.name
    )


def calls_of(parts: Found) -> list[tuple[str, object]]:
    return [(part[0], json.loads(part[1])) for part in parts if isinstance(part, tuple)]


def expected_calls(case: OutputCase) -> list[tuple[str, object]]:
    calls: list[tuple[str, object]] = [("get_weather", WEATHER_ARGUMENTS)]
    return [*calls, ("clock", {})] if case.second else calls


def test_all_formats_have_a_case() -> None:
    assert tuple(NAMES) == FORMAT_NAMES


@pytest.mark.parametrize("name", [case.name for case in CASES if case.sign])
def test_template_tells_the_format(name: str) -> None:
    template = f"{{% if tools %}}{BY_NAME[name].sign}{{% endif %}}"
    assert choose_output_format(template, ()).name == name


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ParameterError, match="unknown tool-call format 'xml'"):
        choose_output_format("", (), tool_format="xml")


def test_calls_are_read_in_the_form_that_is_asked_for_where_a_template_knows_none() -> None:
    messages = [ChatMessage(role="user", content="How late is it?")]
    prompt = fill_gaps(messages, TOOLS, source="{{ messages }}", special_tokens={})[0].content
    example = "<tool_call>" + prompt.rpartition("<tool_call>")[2]
    call = example.replace("the function's name", "clock")
    assert parse(choose_output_format("{{ messages }}", ()), call) == [("clock", "{}")]


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_found(name: str) -> None:
    case = BY_NAME[name]
    for size in (10**9, 1, 2, 3, 5, 11):
        parts = parse(format_of(case), case.calls, size)
        assert calls_of(parts) == expected_calls(case), size
        assert len(parts) == len(expected_calls(case)), size


@pytest.mark.parametrize("name", [case.name for case in CASES if case.control])
def test_text_may_come_first_where_calls_have_marks(name: str) -> None:
    case = BY_NAME[name]
    if name == "llama":
        pytest.skip("a call is the whole answer")
    before = "" if name == "harmony" else "I look.\n\n"
    first, *calls = parse(format_of(case), before + case.calls, 1) or [""]
    assert (first == "I look." and len(calls_of([*calls])) >= 1) or name == "harmony"


@pytest.mark.parametrize("name", NAMES)
def test_arguments_come_as_they_are_written(name: str) -> None:
    case = BY_NAME[name]
    parser = format_of(case).parser(tool_use(), prompt_end="")
    cut = case.first.index("<b>")
    parts = [*parser.push(case.first[:cut]), *parser.push("<b> Ž")]
    text = "".join(part.text for part in parts if hasattr(part, "index") and hasattr(part, "text"))
    assert text == '{"city": "A \\"q\\"\\n<b> Ž'


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_output_may_be_cut_off_anywhere(name: str) -> None:
    case = BY_NAME[name]
    output_format = format_of(case)
    for length in range(len(case.calls)):
        text = case.calls[:length]
        assert parse(output_format, text, 1) == parse(output_format, text), text


@pytest.mark.parametrize("mode", [ToolMode.AUTO, ToolMode.REQUIRED])
@pytest.mark.parametrize("name", NAMES)
def test_no_part_of_a_call_is_text_where_an_output_is_cut(name: str, mode: ToolMode) -> None:
    case = BY_NAME[name]
    output_format = format_of(case)
    is_bare = case.name in ("llama", "pythonic")
    # A bare object may be an answer in JSON until it names a tool.
    start = 0 if mode is ToolMode.REQUIRED else 3
    if is_bare and mode is ToolMode.AUTO:
        start = case.first.index("get_weather") + 12
    for length in range(start, len(case.calls)):
        text = case.calls[:length]
        parts = parse(output_format, text, use=tool_use(mode), is_cut=True)
        shortest = 3 if mode is ToolMode.AUTO else 1
        assert [each for each in parts if isinstance(each, str) and len(each) >= shortest] == []


def test_json_that_is_cut_stays_text_if_it_names_no_tool() -> None:
    output_format = format_of(BY_NAME["llama"])
    for text in ('{"a": 1', '{"a": "b', '{"name": "Ada", "parameters": {"x', '{"name": "clo'):
        assert parse(output_format, text, is_cut=True) == [text]
    assert parse(output_format, '{"name": "clock", "para', is_cut=True) == []


def test_a_long_value_takes_time_in_proportion() -> None:
    def parsing(num_characters: int) -> Callable[[], object]:
        text = "<|tool_call>call:clock{a:" + "x" * num_characters
        return lambda: parse(format_of(BY_NAME["gemma"]), text, 4)

    assert_in_proportion(parsing, 20_000)


@pytest.mark.parametrize("name", NAMES)
def test_calls_of_unknown_tools_are_text(name: str) -> None:
    case = BY_NAME[name]
    text = case.calls.replace("get_weather", "rm").replace("clock", "dd")
    parts = parse(format_of(case), text)
    assert calls_of(parts) == []
    assert "rm" in "".join(map(str, parts))


@pytest.mark.parametrize("is_control", [False, True], ids=["plain", "control"])
@pytest.mark.parametrize("name", NAMES)
class TestGrammar:
    def test_allows_what_models_write(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        grammar = format_of(case, is_control=is_control).grammar(REQUIRED, prompt_end="")
        assert grammar is not None
        assert texts.allows(grammar, case.calls), texts.rejected_at(grammar, case.calls)
        assert not texts.allows(grammar, "")
        assert not texts.allows(grammar, "It rains.")

    def test_refuses_wrong_arguments(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        grammar = format_of(case, is_control=is_control).grammar(REQUIRED, prompt_end="")
        assert grammar is not None
        wrong = case.calls.replace(case.right, case.wrong)
        assert wrong != case.calls
        assert not texts.allows(grammar, wrong)

    def test_names_one_tool(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        use = tool_use(ToolMode.REQUIRED, name="clock")
        grammar = format_of(case, is_control=is_control).grammar(use, prompt_end="")
        assert grammar is not None
        assert not texts.allows(grammar, case.calls)

    def test_makes_one_call_unless_it_is_parallel(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        use = tool_use(ToolMode.REQUIRED, is_parallel=False)
        grammar = format_of(case, is_control=is_control).grammar(use, prompt_end="")
        assert grammar is not None
        assert texts.allows(grammar, case.calls) == (not case.second)

    @pytest.mark.slow
    def test_what_it_draws_is_a_valid_call(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        output_format = format_of(case, is_control=is_control)
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        grammar = output_format.grammar(REQUIRED, prompt_end="")
        assert grammar is not None
        source = random.Random(case.name)
        if name == "harmony" and not is_control:
            pytest.skip("its thoughts may have the texts of all marks")
        marks = ["<|end|>", "<|start|>assistant", "<|call|>", *'"}])' * 4]
        if name != "harmony":
            marks += re.findall(r"\n?</?[^<>\s]+>|\[[A-Z_]+\]", case.calls)

        for _ in range(6):
            text = texts.draw(grammar, source, marks)
            parts = parse(output_format, text)
            assert parts
            assert all(isinstance(part, tuple) or part.startswith("~") for part in parts), text
            assert calls_of(parts)
            for called, arguments in calls_of(parts):
                jsonschema.validate(arguments, SCHEMAS[called])

    def test_strict_tools_are_called_well_or_not(self, name: str, is_control: bool) -> None:
        case = BY_NAME[name]
        strict = tuple(
            Tool(name=tool.name, parameters=tool.parameters, is_strict=True) for tool in TOOLS
        )
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        output_format = format_of(case, is_control=is_control)
        grammar = output_format.grammar(ToolUse(tools=strict), prompt_end="")
        assert grammar is not None
        answer = "It rains."
        if name == "harmony":
            answer = f"<|channel|>final<|message|>{answer}"
        assert texts.allows(grammar, answer)
        assert texts.allows(grammar, case.calls), texts.rejected_at(grammar, case.calls)
        assert not texts.allows(grammar, case.calls.replace(case.right, case.wrong))

    def test_strict_tools_are_called_as_the_grammar_has_it(
        self, name: str, is_control: bool
    ) -> None:
        """Other beginnings, which are read from models that write them, are text to a grammar."""
        case = BY_NAME[name]
        use = ToolUse(tools=tuple(replace(tool, is_strict=True) for tool in TOOLS))
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        output_format = format_of(case, is_control=is_control)
        grammar = output_format.grammar(use, prompt_end="")
        assert grammar is not None
        assert calls_of(parse(output_format, case.calls, use=use)) == expected_calls(case)
        syntax = FORMATS.get(name)
        for opening in () if syntax is None else (*syntax.openings, *syntax.bare_openings, ""):
            wrong = case.calls.replace(case.right, case.wrong)
            for start in sorted(syntax.openings if syntax else (), key=len, reverse=True):
                if wrong.startswith(start):
                    wrong = wrong.removeprefix(start).lstrip()
                    break
            if not wrong.startswith(opening):
                wrong = opening + wrong
            if texts.allows(grammar, wrong):
                for called, arguments in calls_of(parse(output_format, wrong, use=use)):
                    jsonschema.validate(arguments, SCHEMAS[called])

    def test_tools_that_are_not_strict_take_any_arguments(
        self, name: str, is_control: bool
    ) -> None:
        case = BY_NAME[name]
        texts = grammar_texts(frozenset(case.control if is_control else ()))
        output_format = format_of(case, is_control=is_control)
        grammar = output_format.grammar(tool_use(is_parallel=False), prompt_end="")
        assert grammar is not None
        one = case.calls if not case.second else ""
        assert not case.second or not texts.allows(grammar, case.calls)
        assert texts.allows(grammar, one) or name == "harmony"


def test_formats_without_an_opening_of_calls_repeat_their_sections() -> None:
    named = [each for each in FORMATS.values() if isinstance(each, NamedCalls)]
    assert named
    for each in named:
        assert each.repeats == (not each.call_opening), each
