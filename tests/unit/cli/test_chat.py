"""Messages of a chat on a terminal whose history no longer fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from potluck.cli.chat import _start, chat_loop
from potluck.errors import PromptTooLongError
from potluck.types.text import ChatMessage


class SmallModel:
    """Answers histories of at most ``num_fitting`` messages."""

    def __init__(self, num_fitting: int) -> None:
        self._num_fitting = num_fitting

    def chat(self, messages: list[ChatMessage]) -> str:
        if len(messages) > self._num_fitting:
            raise PromptTooLongError(9, 8)
        return "answer"


@pytest.mark.parametrize(
    ("num_fitting", "said"),
    [
        (5, ""),
        (3, "(dropped the oldest turn, which no longer fits)\n"),
        (1, "(dropped the 2 oldest turns, which no longer fit)\n"),
    ],
)
def test_turns_that_no_longer_fit_are_counted(
    num_fitting: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [ChatMessage(role="user", content=str(number)) for number in range(5)]
    model = cast(Any, SmallModel(num_fitting))
    assert cast(Any, _start(model.chat, messages, 0)) == "answer"
    assert [each.content for each in messages] == [str(n) for n in range(5 - num_fitting, 5)]
    assert capsys.readouterr().err == said


def test_a_message_that_is_too_long_ends_neither_the_chat_nor_its_history(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Answer:
        def __iter__(self) -> Iterator[Any]:
            raise KeyboardInterrupt

        def close(self) -> None:
            pass

    def answer(messages: Sequence[ChatMessage]) -> Any:
        if messages[-1].content == "too long":
            raise PromptTooLongError(9, 8)
        asked.append([each.content for each in messages])
        return Answer()

    lines = iter(["first", "too long", "second", "/exit"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    chat_loop(answer, ())
    assert asked == [["first"], ["first", "", "second"]]
    assert "the prompt has 9 tokens, but the context size is 8\nhint: " in capsys.readouterr().err
