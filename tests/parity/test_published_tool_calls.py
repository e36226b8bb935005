"""Calls as published templates write them, read by the formats that the templates tell."""

from __future__ import annotations

import json
import re
from datetime import datetime

from support.text.chats import CLOCK, WEATHER, Message, assistant, call, messages_of, tools_of, user
from support.text.published_templates import SPECIAL_TOKENS, templates_or_skip
from support.text.tool_outputs import found

from potluck.errors import ChatTemplateError
from potluck.text.chat import ChatTemplate
from potluck.text.tool_formats import choose_output_format
from potluck.types.output import ToolUse

TEMPLATES = templates_or_skip()
TOOLS = tuple(tools_of([WEATHER, CLOCK]))
WEATHER_CALL = call(
    "abcdef012",
    "get_weather",
    city='A "q"\n<b>',
    days=2,
    place={"latitude": 49.5, "tags": ["x"]},
)
TWO = [assistant("", tool_calls=[WEATHER_CALL, call("abcdef013", "clock")])]
ONE = [assistant("", tool_calls=[WEATHER_CALL])]
NOT_READ = re.compile("muse_glimmer")
"""Formats of their own, which are not supported."""
LEAST_READ = 60
"""Of the templates, those that write calls; the others refuse them, or leave them out."""


def rendered(source: str, messages: list[Message], *, is_open: bool) -> str:
    template = ChatTemplate(source=source, special_tokens=SPECIAL_TOKENS)
    return template.render(
        messages_of(messages),
        tools=TOOLS,
        add_generation_prompt=is_open,
        now=datetime(2026, 7, 1, 9, 5),
    )


def written(source: str, answer: list[Message]) -> tuple[str, str]:
    """The end of the prompt, and what the model writes if it answers so."""
    question = [user("Weather?")]
    prompt = rendered(source, question, is_open=True)
    whole = rendered(source, question + answer, is_open=False)
    length = next(
        (index for index, pair in enumerate(zip(prompt, whole, strict=False)) if len({*pair}) > 1),
        min(len(prompt), len(whole)),
    )
    before, after = whole[:length], whole[length:]
    opened = max(map(before.rfind, "<["))  # not within a mark
    if not re.search(r"[>\]]", before[max(opened, 0) :]):
        before, after = before[:opened], before[opened:] + after
    return before[-40:], after


def test_calls_are_read_as_they_were_written() -> None:
    num_read = sum(is_read(name, source) for name, source in sorted(TEMPLATES.items()))
    assert num_read >= LEAST_READ


def is_read(name: str, source: str) -> bool:
    """Whether the template writes calls; fails if they are not read as they were written."""
    for answer in (TWO, ONE):
        try:
            prompt_end, text = written(source, answer)
        except ChatTemplateError:
            continue
        break
    else:
        return False
    if "get_weather" not in text or NOT_READ.search(name):
        return False
    output_format = choose_output_format(source, ())
    parser = output_format.parser(ToolUse(tools=TOOLS), prompt_end=prompt_end)
    parts = found([*(part for each in text for part in parser.push(each)), *parser.finish()])
    calls = [(part[0], json.loads(part[1])) for part in parts if isinstance(part, tuple)]
    expected = [
        (each["function"]["name"], each["function"]["arguments"])
        for each in answer[0]["tool_calls"]
    ]
    if output_format.name == "harmony":  # which calls one tool at a time
        expected = expected[:1]
    assert calls == expected, (name, text)
    return True
