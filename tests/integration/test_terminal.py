"""``potluck`` on a terminal: the chat, the progress bar, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.processes.command import COMMAND, run_command
from support.processes.environment import environment
from support.processes.terminal import Terminal, on_terminal

import potluck
from potluck.types.text import ChatMessage

FIGURES = "tokens/s)"
# So hot that all tokens are alike, the one that ends the text too, and slow: it takes seconds.
LONG = ("--temperature", "50", "--seed", "6", "--threads", "1")
ENDLESS = ("run", "demo", "-p", "The fox", *LONG)
SLOW = {"POTLUCK_ISA": "scalar"}


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Terminal]:
    """A greedy chat of short answers."""
    arguments = ("run", "demo", "--temperature", "0", "-n", "30")
    with on_terminal((*COMMAND, *arguments), environment(HOME=str(tmp_path))) as terminal:
        terminal.wait_for("Ctrl-D quits")
        terminal.wait_for("> ")
        yield terminal


def answers(*questions: str) -> list[str]:
    """What the model says in one chat."""
    messages: list[ChatMessage] = []
    with potluck.Model.open("demo") as model:
        for question in questions:
            messages.append(ChatMessage(role="user", content=question))
            text = model.chat(messages, max_tokens=30, temperature=0.0).result().text
            messages.append(ChatMessage(role="assistant", content=text))
    return [message.content for message in messages if message.role == "assistant"]


def ask(terminal: Terminal, question: str) -> str:
    """The answer to a question, as it stands on the screen."""
    terminal.type(question + "\n")
    terminal.wait_for(question + "\r\n")
    shown = terminal.wait_for(FIGURES)
    # The line of figures is the last one; its own rate came first or was cut off.
    answer = shown[: shown.rindex("prefill")]
    terminal.wait_for("> ")
    return answer.replace("\r\n", "\n").removesuffix("\n")


def test_a_chat_has_a_history_that_can_be_cleared(chat: Terminal) -> None:
    first, second = "Tell me a story about a fox.", "Tell me another one."
    with_history = answers(first, second)
    (without,) = answers(second)
    assert with_history[1] != without, "choose another second question"
    assert ask(chat, first) == with_history[0]
    assert ask(chat, second) == with_history[1]
    chat.type("/clear\n")
    chat.wait_for("History cleared")
    chat.wait_for("> ")
    assert ask(chat, second) == without
    assert chat.press_ctrl_d() == 0
    assert "Traceback" not in chat.screen


def test_empty_lines_are_passed_over_and_exit_ends_it(chat: Terminal) -> None:
    chat.type("\n")
    chat.wait_for("> ")
    chat.type("   \n")
    chat.wait_for("> ")
    chat.type("/exit\n")
    assert chat.wait() == 0
    assert FIGURES not in chat.screen


def test_ctrl_c_stops_an_answer_and_not_the_chat(tmp_path: Path) -> None:
    arguments = ("run", "demo", *LONG)
    with on_terminal((*COMMAND, *arguments), environment(HOME=str(tmp_path), **SLOW)) as terminal:
        terminal.wait_for("> ")
        terminal.type("Tell me a long story about a fox.\n")
        terminal.wait_for("fox.\r\n")
        terminal.wait_for(" ")  # of the answer
        terminal.press_ctrl_c()
        terminal.wait_for("…")
        terminal.wait_for("> ")
        terminal.press_ctrl_c()
        terminal.type("\n")  # a signal just before the line is read waits for a key
        terminal.wait_for("> ")
        assert terminal.press_ctrl_d() == 0
        assert "Traceback" not in terminal.screen


def test_loading_shows_a_bar_on_a_terminal_only(tmp_path: Path) -> None:
    arguments = ("run", "demo", "-p", "The fox", "-n", "4", "--temperature", "0")
    with on_terminal((*COMMAND, *arguments), environment(HOME=str(tmp_path))) as terminal:
        assert terminal.wait() == 0
        assert "loading demo" in terminal.screen
        assert "MiB" in terminal.screen
    piped = run_command(*arguments)
    assert "loading" not in piped.stderr
    assert "\x1b" not in piped.stderr + piped.stdout
    assert len(piped.stderr.splitlines()) == 1


def test_ctrl_c_while_it_starts() -> None:
    """As soon as NumPy is being loaded, long before there is a model."""
    with subprocess.Popen(
        [*COMMAND, *ENDLESS], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment()
    ) as process:
        maps = Path(f"/proc/{process.pid}/maps")
        while "_multiarray_umath" not in maps.read_text():
            assert process.poll() is None
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == 130


def test_ctrl_c_stops_a_text() -> None:
    with subprocess.Popen(
        [*COMMAND, *ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**SLOW),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == 130
