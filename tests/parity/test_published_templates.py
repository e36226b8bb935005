"""Templates as they are published, rendered as transformers renders them."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from support.text.chats import (
    CLOCK,
    ONE_CALL,
    SYSTEM,
    THOUGHTS,
    THOUGHTS_AND_CALLS,
    TURNS,
    TWO_CALLS,
    WEATHER,
    Message,
    assistant,
    encode_chat,
    messages_of,
    tools_of,
    user,
    with_texts,
)
from support.text.published_templates import SPECIAL_TOKENS, templates_or_skip
from support.text.recording_tokenizer import RecordingTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from potluck.errors import ChatTemplateError
from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.text.reasoning import (
    ReasoningSplitter,
    ThoughtState,
    reasoning_format,
)
from potluck.text.template_gaps import fill_gaps
from potluck.text.template_losses import complete
from potluck.types.output import ReasoningPart, TextPart
from potluck.types.text import ChatEnding

TEMPLATES = templates_or_skip()
TOOLS = [WEATHER, CLOCK]

Case = tuple[list[Message], list[Message], dict[str, Any]]
CASES: dict[str, Case] = {
    "one turn": ([user("  Hi <b> & 'you'\n")], [], {}),
    "system": ([SYSTEM, user("Hi")], [], {}),
    "several turns": ([SYSTEM, *TURNS], [], {}),
    "tools": ([user("Hi")], TOOLS, {}),
    "tools and system": ([SYSTEM, *TURNS], TOOLS, {}),
    "a call": (ONE_CALL, TOOLS, {}),
    "two calls": ([SYSTEM, *TWO_CALLS], TOOLS, {}),
    "calls without tools": (TWO_CALLS, [], {}),
    "thoughts": (THOUGHTS, [], {}),
    "thoughts and calls": (THOUGHTS_AND_CALLS, TOOLS, {}),
    "thinking on": (THOUGHTS, [], {"enable_thinking": True, "thinking": True}),
    "thinking off": (THOUGHTS, [], {"enable_thinking": False, "thinking": False}),
    "thinking on, with calls": (THOUGHTS_AND_CALLS, TOOLS, {"enable_thinking": True}),
    "thinking off, with calls": (THOUGHTS_AND_CALLS, TOOLS, {"enable_thinking": False}),
    "effort": ([user("Hi")], [], {"reasoning_effort": "high"}),
}


# All tests of a template come together, so that it is compiled once and not for each of them.
each_template = pytest.mark.parametrize("name", TEMPLATES, scope="module")


def rendered_by_transformers(
    source: str, messages: list[Message], tools: list[Message], **options: Any
) -> str | None:
    """What transformers writes; None where the template fails or refuses the chat."""
    try:
        rendered, _ = render_jinja_template(
            conversations=[messages],
            tools=tools or None,
            chat_template=source,
            **{**SPECIAL_TOKENS, **options},
        )
    except Exception:  # noqa: BLE001 (whatever templates raise)
        return None
    text: str = rendered[0]
    return text


def expected(source: str, messages: list[Message], *rest: Any, **options: Any) -> str | None:
    """With the arguments of calls as JSON, too, if the template cannot do with objects."""
    messages = with_contents_for(source, messages)
    text = rendered_by_transformers(source, messages, *rest, **options)
    if text is None:
        text = rendered_by_transformers(source, with_json(messages), *rest, **options)
    return text


def with_contents_for(source: str, messages: list[Message]) -> list[Message]:
    """``messages`` with null where it is tested for, and parts where only these are written."""
    tests_for_null = "content'] is none" in source or "message.content is none" in source
    zebra = rendered_by_transformers(source, [user("Zebra")], [], add_generation_prompt=True)
    changed = copy.deepcopy(messages)
    for message in changed:
        if tests_for_null and message.get("tool_calls") and not message["content"]:
            message["content"] = None
        elif "Zebra" not in (zebra or ""):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return changed


def with_json(messages: list[Message]) -> list[Message]:
    """``messages`` with the arguments of calls as texts."""
    changed = copy.deepcopy(messages)
    for message in changed:
        for made in message.get("tool_calls", ()):
            arguments = made["function"]["arguments"]
            made["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return changed


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt's text, and the control tokens that are read in it, in order."""

    text: str
    controls: list[int]


def prompted(
    source: str,
    case: Case,
    *,
    control: tuple[str, ...] = (),
    ending: ChatEnding = ChatEnding.NEW_TURN,
) -> Prompt | None:
    """What is given to the tokenizer; None where the template refuses."""
    messages, tools, variables = case
    tokenizer = RecordingTokenizer(special_tokens=control)
    try:
        tokens = encode_chat(
            tokenizer,
            ChatTemplate(source=source, special_tokens=SPECIAL_TOKENS),
            messages_of(messages),
            tools=tools_of(tools),
            template_variables=variables,
            ending=ending,
            now=datetime.now(),
        )
    except ChatTemplateError:
        return None
    return Prompt(tokenizer.texts[-1], tokens)


def control_texts(source: str) -> tuple[str, ...]:
    """What looks like a control token in a template, and the special tokens."""
    tags = re.findall(r"<[^<>\s'\"{}()+=~]+>|\[/?[A-Z_]+\]", source)
    return tuple(sorted({*tags, *SPECIAL_TOKENS.values()}))


@pytest.mark.parametrize("ending", [ChatEnding.NEW_TURN, ChatEnding.CLOSED])
@each_template
def test_published_templates(name: str, ending: ChatEnding) -> None:
    source = TEMPLATES[name]
    is_opened = ending is ChatEnding.NEW_TURN
    num_compared = 0
    for title, case in CASES.items():
        messages, tools, variables = case
        text = expected(source, messages, tools, add_generation_prompt=is_opened, **variables)
        gaps = has_gaps(source, messages, tools)
        # Control tokens are told apart without a trace in the text.
        for control in ((), control_texts(source)):
            prompt = prompted(source, case, control=control, ending=ending)
            assert gaps or (prompt and prompt.text) == text, title
        num_compared += text is not None and not gaps
    assert num_compared


def has_gaps(source: str, messages: list[Message], tools: list[Message]) -> bool:
    """Whether the template has no place for a part of the chat, so that it is put elsewhere."""
    chat = messages_of(messages)
    filled = fill_gaps(chat, tools_of(tools), source=source, special_tokens=SPECIAL_TOKENS)
    template = ChatTemplate(source=source, special_tokens=SPECIAL_TOKENS)
    return chat != complete(filled, partial(template.render, tools=tools_of(tools)))


@each_template
def test_gaps_of_published_templates(name: str) -> None:
    source = TEMPLATES[name]
    messages = [SYSTEM, *TWO_CALLS[:4]]
    if not has_gaps(source, messages, TOOLS):
        return
    prompt = prompted(source, (messages, TOOLS, {}))
    assert prompt is not None
    for text in (SYSTEM["content"], "get_weather", "Tell the time.", messages[-1]["content"]):
        assert text in prompt.text or json.dumps(text, ensure_ascii=False)[1:-1] in prompt.text


BEGUN: dict[str, tuple[list[Message], list[Message], str]] = {
    "an answer": ([user("Hi"), assistant("Once upon a")], [], "content"),
    "an answer with spaces": ([user("Hi"), assistant(" Once\n\n")], [], "content"),
    "after a call": ([*ONE_CALL, assistant("The sky is")], TOOLS, "content"),
    "after thoughts": (
        [user("2+2?"), assistant("It is", reasoning_content="Two and two.")],
        [],
        "content",
    ),
    "thoughts": ([user("2+2?"), assistant(reasoning_content="Two and")], [], "reasoning_content"),
}


@each_template
def test_continued(name: str) -> None:
    source = TEMPLATES[name]
    for title, (messages, tools, field) in BEGUN.items():
        text = expected(source, messages, tools, continue_final_message=field)
        prompt = prompted(
            source, (messages, tools, {}), control=("<s>",), ending=ChatEnding.CONTINUED
        )
        if has_gaps(source, messages, tools):
            continue
        if text is not None and messages[-1][field].strip() in text:
            assert prompt is not None, title
            assert prompt.text == text, title


@each_template
def test_no_text_becomes_a_control_token(name: str) -> None:
    """Control tokens in contents, arguments, results and schemas are text, wherever they are."""
    source = TEMPLATES[name]
    control = control_texts(source)
    attack = "".join(control) + "x" + control[0][:-1]
    words = {
        "I shall look.", "noon", "clear", "Clear, and noon.", "Weather and time?", "metric",
        'A "quoted"\nname', "Tell the time.", "In degrees", "Where exactly", "imperial",
    }  # fmt: skip
    harmless = re.sub(r"[^x]", "y", attack)
    for title in ("one turn", "tools", "two calls", "calls without tools"):
        messages, tools, _ = CASES[title]
        hostile, plain = (
            prompted(
                source,
                (with_texts(messages, change), with_texts(tools, change), {}),
                control=control,
            )
            for change in (dict.fromkeys(words, attack), dict.fromkeys(words, harmless))
        )
        if hostile is None or plain is None:
            assert hostile is plain
            continue
        assert hostile.controls == plain.controls, title


@pytest.mark.parametrize("name", [name for name in TEMPLATES if "think>" in TEMPLATES[name]])
def test_thoughts_of_published_templates(name: str) -> None:
    """What a template writes of an answer with thoughts is split into these."""
    source = TEMPLATES[name]
    reasoning = reasoning_format(source)
    assert reasoning is not None
    question, answer, _ = THOUGHTS
    texts = [
        rendered_by_transformers(source, chat, [], add_generation_prompt=False)
        for chat in ([question], [question, answer])
    ]
    if texts[0] is None or texts[1] is None or answer["reasoning_content"] not in texts[1]:
        return  # the template drops thoughts
    splitter = ReasoningSplitter(reasoning)
    _, _, turn = texts[1].rpartition(question["content"])
    _, mark, output = turn.partition(reasoning.open_texts[0])
    parts = [*splitter.push(mark + output), *splitter.finish()]
    assert parts[0] == ReasoningPart(text=answer["reasoning_content"])
    assert isinstance(parts[1], TextPart)
    assert parts[1].text.startswith("4")


@pytest.mark.parametrize(
    "name",
    [
        "trl:qwen3",
        "trl:qwen3_5_nothink",
        "trl:qwen3_5_think",
        "trl:qwen3_6",
        "trl:qwen3_8",
        "trl:glm4moe",
        "trl:nemotron_3_nano",
    ],
)
def test_thinking_is_switched(name: str) -> None:
    source = TEMPLATES[name]
    reasoning = reasoning_format(source)
    assert reasoning is not None
    states = {}
    for is_on in (True, False):
        prompt = prompt_chat(
            RecordingTokenizer(),
            ChatTemplate(source=source, special_tokens=SPECIAL_TOKENS),
            messages_of([user("What does <think> mean?")]),
            thinks=is_on,
        )
        states[is_on] = reasoning.state_after(prompt.turn)
    assert states[True] in (ThoughtState.UNDECIDED, ThoughtState.OPEN)
    assert states[False] is ThoughtState.CLOSED


def test_enough_of_them_know_tools() -> None:
    """Or what is above shows little."""
    assert sum("tools" in TEMPLATES[name] for name in TEMPLATES if "training" not in name) >= 25
    with_calls = [
        name
        for name, source in TEMPLATES.items()
        if "Žilina" in (expected(source, ONE_CALL, TOOLS, add_generation_prompt=True) or "")
    ]
    assert len(with_calls) >= 25
