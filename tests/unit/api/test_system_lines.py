"""``potluck.api.system_lines``."""

from __future__ import annotations

import pytest

from potluck.api.system_lines import KNOWN_CHANGING_LINES, without_lines
from potluck.types.text import ChatMessage

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
