"""An output with tool calls in each format, as models write it after templates of the format."""

from __future__ import annotations

import json
from dataclasses import dataclass

CITY = 'A "q"\n<b> Ž'
PLACE = {"latitude": 49.5, "tags": ["x"]}
WEATHER_ARGUMENTS = {"city": CITY, "days": 2, "place": PLACE}
WEATHER_JSON = json.dumps(WEATHER_ARGUMENTS, ensure_ascii=False)
PLACE_JSON = json.dumps(PLACE)

_WEATHER_CALL = f'{{"name": "get_weather", "arguments": {WEATHER_JSON}}}'
_CLOCK_CALL = '{"name": "clock", "arguments": {}}'
_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_SEP = "<｜tool▁sep｜>"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputCase:
    """``calls`` are ``get_weather`` and ``clock``; ``second`` is empty if there is one only.

    ``sign`` is what the templates have. ``wrong`` in place of ``right`` is an output whose
    arguments the schema does not allow, and which is otherwise well-formed.
    """

    name: str
    sign: str
    first: str
    second: str = ""
    control: tuple[str, ...] = ()
    right: str = "2"
    wrong: str = "false"

    @property
    def calls(self) -> str:
        return self.first + self.second


def _dsml(name: str, section: str) -> OutputCase:
    dsml = "｜DSML｜"
    return OutputCase(
        name=name,
        sign=f"<{dsml}{section}>",
        first=f'<{dsml}{section}>\n<{dsml}invoke name="get_weather">\n'
        f'<{dsml}parameter name="city" string="true">{CITY}</{dsml}parameter>\n'
        f'<{dsml}parameter name="days" string="false">2</{dsml}parameter>\n'
        f'<{dsml}parameter name="place" string="false">{PLACE_JSON}</{dsml}parameter>\n'
        f"</{dsml}invoke>\n",
        second=f'<{dsml}invoke name="clock">\n</{dsml}invoke>\n</{dsml}{section}>',
        control=(dsml,),
        right="2<",
        wrong="two<",
    )


def _parameters(*, space: str = "") -> str:
    return (
        f"<parameter=city>{space}{CITY}{space}</parameter>\n"
        f"<parameter=days>{space}2{space}</parameter>\n"
        f"<parameter=place>{space}{PLACE_JSON}{space}</parameter>\n"
    )


CASES = (
    OutputCase(
        name="hermes",
        sign="<tool_call>",
        first=f"<tool_call>\n{_WEATHER_CALL}\n</tool_call>",
        second=f"\n<tool_call>\n{_CLOCK_CALL}\n</tool_call>",
        control=("<tool_call>", "</tool_call>"),
    ),
    OutputCase(
        name="qwen-coder",
        sign="<tool_call>\n<function=",
        first=f"<tool_call>\n<function=get_weather>\n{_parameters(space=chr(10))}</function>\n"
        "</tool_call>",
        second="\n<tool_call>\n<function=clock>\n</function>\n</tool_call>",
        right="\n2\n",
        wrong="\ntwo\n",
    ),
    OutputCase(
        name="seed",
        sign="<seed:tool_call>\n<function=",
        first=f"<seed:tool_call>\n<function=get_weather>\n{_parameters()}</function>\n"
        "</seed:tool_call>",
        second="\n<seed:tool_call>\n<function=clock>\n</function>\n</seed:tool_call>",
        control=("<seed:tool_call>", "</seed:tool_call>"),
        right=">2<",
        wrong=">two<",
    ),
    OutputCase(
        name="glm",
        sign="<tool_call>{name}<arg_key>",
        first=f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n<arg_key>place</arg_key>\n"
        f"<arg_value>{PLACE_JSON}</arg_value>\n</tool_call>",
        second="\n<tool_call>clock\n</tool_call>",
        control=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                 "</arg_value>"),
        right=">2<",
        wrong=">two<",
    ),
    OutputCase(
        name="llama",
        sign="<|python_tag|>",
        first=f'{{"name": "get_weather", "parameters": {WEATHER_JSON}}}',
        second='; {"name": "clock", "parameters": {}}',
        control=("<|python_tag|>",),
    ),
    OutputCase(
        name="mistral-list",
        sign="[TOOL_CALLS][",
        first=f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {WEATHER_JSON}, '
        '"id": "abcdef012"}',
        second=f", {_CLOCK_CALL}]",
        control=("[TOOL_CALLS]",),
    ),
    OutputCase(
        name="mistral",
        sign="[TOOL_CALLS] [ARGS]",
        first=f"[TOOL_CALLS]get_weather[CALL_ID]abcdef012[ARGS]{WEATHER_JSON}",
        second="[TOOL_CALLS]clock[ARGS]{}",
        control=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ),
    OutputCase(
        name="gemma",
        sign="<|tool_call>call: <tool_call|>",
        first=f'<|tool_call>call:get_weather{{city:<|"|>{CITY}<|"|>,days:2,'
        'place:{latitude:49.5,tags:[<|"|>x<|"|>]}}<tool_call|>',
        second="<|tool_call>call:clock{}<tool_call|>",
        control=("<|tool_call>", "<tool_call|>", '<|"|>'),
    ),
    OutputCase(
        name="function-gemma",
        sign="<start_function_call>",
        first=f"<start_function_call>call:get_weather{{city:<escape>{CITY}<escape>,days:2,"
        "place:{latitude:49.5,tags:[<escape>x<escape>]}}<end_function_call>",
        second="<start_function_call>call:clock{}<end_function_call>",
        control=("<start_function_call>", "<end_function_call>", "<escape>"),
    ),
    OutputCase(
        name="deepseek-v3",
        sign=f"{_BEGIN}{_CALL}{_SEP}\n```json",
        first=f"{_BEGIN}{_CALL}function{_SEP}get_weather\n```json\n{WEATHER_JSON}\n```{_CALL_END}",
        second=f"\n{_CALL}function{_SEP}clock\n```json\n{{}}\n```{_CALL_END}{_END}",
        control=(_BEGIN, _END, _CALL, _CALL_END, _SEP),
    ),
    OutputCase(
        name="deepseek-v3.1",
        sign=f"{_BEGIN}{_CALL}{_SEP}",
        first=f"{_BEGIN}{_CALL}get_weather{_SEP}{WEATHER_JSON}{_CALL_END}",
        second=f"{_CALL}clock{_SEP}{{}}{_CALL_END}{_END}",
        control=(_BEGIN, _END, _CALL, _CALL_END, _SEP),
    ),
    _dsml("deepseek-v3.2", "function_calls"),
    _dsml("deepseek-v4", "tool_calls"),
    OutputCase(
        name="kimi-k2",
        sign="<|tool_calls_section_begin|>",
        first="<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{WEATHER_JSON}<|tool_call_end|>",
        second="<|tool_call_begin|>functions.clock:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        control=("<|tool_calls_section_begin|>", "<|tool_call_begin|>",
                 "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ),
    OutputCase(
        name="solar",
        sign="<|tool_call:args|>",
        first="<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>"
        f"{WEATHER_JSON}<|tool_call:end|>",
        second="<|tool_call:begin|>a2<|tool_call:name|>clock<|tool_call:args|>{}<|tool_call:end|>"
        "<|calls|>",
        control=("<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>",
                 "<|tool_call:args|>", "<|tool_call:end|>", "<|calls|>"),
    ),
    OutputCase(
        name="granite",
        sign="<|tool_call|>",
        first=f"<|tool_call|>[{_WEATHER_CALL}",
        second=f", {_CLOCK_CALL}]",
        control=("<|tool_call|>",),
    ),
    OutputCase(
        name="phi",
        sign="<|tool_call|> <|/tool_call|>",
        first=f"<|tool_call|>[{_WEATHER_CALL}",
        second=f", {_CLOCK_CALL}]<|/tool_call|>",
        control=("<|tool_call|>", "<|/tool_call|>"),
    ),
    OutputCase(
        name="functools",
        sign="functools",
        first=f"functools[{_WEATHER_CALL}",
        second=f", {_CLOCK_CALL}]",
    ),
    OutputCase(
        name="functionary",
        sign="<function=",
        first=f"<function=get_weather>{WEATHER_JSON}</function>",
        second="<function=clock>{}</function>",
    ),
    OutputCase(
        name="minimax-m1",
        sign="<tool_calls> <end_of_sentence>",
        first=f"<tool_calls>\n{_WEATHER_CALL}",
        second=f"\n{_CLOCK_CALL}\n</tool_calls>",
    ),
    OutputCase(
        name="minimax-m2",
        sign="<minimax:tool_call>",
        first='<minimax:tool_call>\n<invoke name="get_weather">\n'
        f'<parameter name="city">{CITY}</parameter>\n<parameter name="days">2</parameter>\n'
        f'<parameter name="place">{PLACE_JSON}</parameter>\n</invoke>\n',
        second='<invoke name="clock">\n</invoke>\n</minimax:tool_call>',
        control=("<minimax:tool_call>", "</minimax:tool_call>"),
        right=">2<",
        wrong=">two<",
    ),
    OutputCase(
        name="tool-calls-list",
        sign="<tool_calls>[",
        first=f"<tool_calls>[{_WEATHER_CALL}",
        second=f", {_CLOCK_CALL}]</tool_calls>",
    ),
    OutputCase(
        name="nemotron",
        sign="<TOOLCALL>",
        first=f"<TOOLCALL>[{_WEATHER_CALL}",
        second=f", {_CLOCK_CALL}]</TOOLCALL>",
    ),
    OutputCase(
        name="command",
        sign="<|START_ACTION|>",
        first='<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", '
        f'"parameters": {WEATHER_JSON}}}',
        second=',\n    {"tool_call_id": "1", "tool_name": "clock", "parameters": {}}\n]'
        "<|END_ACTION|>",
        control=("<|START_ACTION|>", "<|END_ACTION|>"),
        right=': 2',
        wrong=': "2"',
    ),
    OutputCase(
        name="gigachat",
        sign="<|function_call|>",
        first=f"<|function_call|>{_WEATHER_CALL}",
        control=("<|function_call|>",),
    ),
    OutputCase(
        name="lfm2",
        sign="<|tool_call_start|>",
        first=f"<|tool_call_start|>[get_weather(city={json.dumps(CITY, ensure_ascii=False)}, days=2"
        f", place={PLACE_JSON})",
        second=", clock()]<|tool_call_end|>",
        control=("<|tool_call_start|>", "<|tool_call_end|>"),
    ),
    OutputCase(
        name="pythonic",
        sign="",
        first=f"[get_weather(city={json.dumps(CITY, ensure_ascii=False)}, days=2"
        f", place={PLACE_JSON})",
        second=", clock()]",
    ),
    OutputCase(
        name="json",
        sign="{{ tools }}",
        first=f"<tool_call>\n{_WEATHER_CALL}\n</tool_call>",
        second=f"\n<tool_call>\n{_CLOCK_CALL}\n</tool_call>",
    ),
    OutputCase(
        name="harmony",
        sign="<|channel|>analysis <|call|>",
        first="<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
        f"{WEATHER_JSON}<|call|>",
        control=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>",
                 "<|return|>"),
    ),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
