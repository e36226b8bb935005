"""Chats as agents send them, in templates as they are published: nothing may be lost."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from support.text.chats import (
    CLOCK,
    WEATHER,
    Message,
    assistant,
    call,
    messages_of,
    result,
    tools_of,
    user,
)
from support.text.published_templates import SPECIAL_TOKENS, templates_or_skip
from support.text.recording_tokenizer import RecordingTokenizer

from potluck.text.chat import ChatTemplate, prompt_chat
from potluck.types.text import ChatEnding

TEMPLATES = templates_or_skip()


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def developer(content: str) -> Message:
    return {"role": "developer", "content": content}


def weather(call_id: str, city: str) -> Message:
    return call(call_id, "get_weather", city=city)


def clock(call_id: str, zone: str) -> Message:
    return call(call_id, "clock", zone=zone)


CHATS: dict[str, list[Message]] = {
    "a call": [
        user("Lima"),
        assistant(tool_calls=[weather("call00001", "Quito")]),
        result("call00001", "get_weather", "sunny"),
    ],
    "text and a call": [
        user("Lima"),
        assistant("Looking", tool_calls=[weather("call00001", "Quito")]),
        result("call00001", "get_weather", "sunny"),
    ],
    "two calls": [
        user("Lima"),
        assistant(tool_calls=[weather("call00001", "Quito"), clock("call00002", "Oslo")]),
        result("call00001", "get_weather", "sunny"),
        result("call00002", "clock", "midnight"),
    ],
    "text and two calls": [
        system("Brevity"),
        user("Lima"),
        assistant(
            "Looking", tool_calls=[weather("call00001", "Quito"), clock("call00002", "Oslo")]
        ),
        result("call00001", "get_weather", "sunny"),
        result("call00002", "clock", "midnight"),
        assistant("Done"),
        user("Thanks"),
    ],
    "text after a result": [
        system("Brevity"),
        user("Lima"),
        assistant(tool_calls=[weather("call00001", "Quito")]),
        result("call00001", "get_weather", "sunny"),
        user("Reminder"),
    ],
    "two messages of the user": [user("Lima"), user("Reminder"), assistant("Done"), user("Thanks")],
    "a system message later": [
        system("Brevity"),
        user("Lima"),
        assistant("Done"),
        system("Courtesy"),
        user("Thanks"),
    ],
    "a system message at the end": [
        user("Lima"),
        assistant("Done"),
        user("Thanks"),
        system("Courtesy"),
    ],
    "a developer message after a result": [
        developer("Brevity"),
        user("Lima"),
        assistant(tool_calls=[weather("call00001", "Quito")]),
        result("call00001", "get_weather", "sunny"),
        developer("Courtesy"),
    ],
    "calls one after the other": [
        system("Brevity"),
        user("Lima"),
        user("Reminder"),
        assistant("Looking", tool_calls=[weather("call00001", "Quito")]),
        result("call00001", "get_weather", "sunny"),
        assistant(tool_calls=[clock("call00002", "Oslo"), weather("call00003", "Kyiv")]),
        result("call00002", "clock", "midnight"),
        result("call00003", "get_weather", "rainy"),
        user("Hurry"),
        assistant("Done"),
        user("Thanks"),
    ],
}
TEXT_BESIDE_CALLS = "Looking"
WITHOUT_TEXT_BESIDE_CALLS = ("axolotl:mistral_v2v3", "axolotl:mistral_v3_tekken")
"""Where roles have to alternate, and a message has either text or calls."""


def texts_of(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_of(each)]
    return []


def texts_of_chat(chat: list[Message]) -> list[str]:
    texts = []
    for message in chat:
        texts.append(message["content"])
        for made in message.get("tool_calls", ()):
            texts += [made["function"]["name"], *texts_of(made["function"]["arguments"])]
    return [text for text in texts if text]


def prompt_of(source: str, chat: list[Message], tools: list[Message]) -> str:
    tokenizer = RecordingTokenizer()
    prompt_chat(
        tokenizer,
        ChatTemplate(source=source, special_tokens=SPECIAL_TOKENS),
        messages_of(chat),
        tools=tools_of(tools),
        ending=ChatEnding.NEW_TURN,
        now=datetime(2026, 7, 1, 9, 5),
    )
    return tokenizer.texts[-1]


# All chats of a template come together, so that it is compiled once.
@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_is_lost(name: str) -> None:
    may_lose = TEXT_BESIDE_CALLS if name in WITHOUT_TEXT_BESIDE_CALLS else ""
    for kind, chat in CHATS.items():
        for tools in ([], [WEATHER, CLOCK]):
            prompt = prompt_of(TEMPLATES[name], chat, tools)
            lost = [text for text in texts_of_chat(chat) if text not in prompt]
            assert [text for text in lost if text != may_lose] == [], kind
