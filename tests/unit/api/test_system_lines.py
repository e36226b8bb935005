"""``potluck.api.system_lines``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import pytest

from potluck.api.system_lines import (
    KNOWN_CHANGING_LINES,
    encoder_without_lines,
    without_lines,
)
from potluck.types.text import ChatEncoder, ChatEnding, ChatMessage, ChatPrompt, Tool

HEADER = "x-anthropic-billing-header: cc_version=2.1; cch=a1b2c;"


def system(content: str) -> ChatMessage:
    return ChatMessage(role="system", content=content)


USER = ChatMessage(role="user", content=HEADER)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{HEADER}\n\nYou help.\n\nMuch.", "You help.\n\nMuch."),
        (f"You help.\n{HEADER}\n\nMuch.", "You help.\nMuch."),
        (f"You help.\n\n{HEADER}", "You help.\n"),
        (f"{HEADER}\n{HEADER}\n  \nYou\n", "You\n"),
        (f" {HEADER}", f" {HEADER}"),
        (f"Never send {HEADER}", f"Never send {HEADER}"),
        (f"a\u2028{HEADER}", f"a\u2028{HEADER}"),
        ("You help.\n\n", "You help.\n\n"),
    ],
)
def test_lines_of_system_messages_go(text: str, left: str) -> None:
    assert without_lines([system(text), USER], KNOWN_CHANGING_LINES) == [system(left), USER]


def test_a_message_that_is_nothing_else_goes_as_a_whole() -> None:
    messages = [system(HEADER), system("You help."), USER]
    assert without_lines(messages, KNOWN_CHANGING_LINES) == [system("You help."), USER]
    assert without_lines([system(HEADER)], KNOWN_CHANGING_LINES) == [system("")]


def test_the_prefixes_are_those_that_are_given() -> None:
    text = f"{HEADER}\ndate: today\nYou help."
    assert without_lines([system(text)], ("date:", "time:")) == [system(f"{HEADER}\nYou help.")]


def test_all_else_is_passed_on() -> None:
    seen: dict[str, object] = {}

    def encoder(messages: Sequence[ChatMessage], **options: object) -> ChatPrompt:
        seen.update(options, messages=messages)
        return ChatPrompt(tokens=[1], turn="")

    options: dict[str, Any] = {
        "ending": ChatEnding.CLOSED,
        "reasoning_effort": "low",
        "thinks": False,
        "tools": (Tool(name="clock"),),
        "template_variables": {"a": 1},
    }
    without = encoder_without_lines(encoder, KNOWN_CHANGING_LINES)
    assert without([system(f"{HEADER}\nYou help.")], **options).tokens == [1]
    assert seen == {**options, "messages": [system("You help.")]}
    assert set(options) == set(inspect.signature(ChatEncoder.__call__).parameters) - {
        "self",
        "messages",
    }
