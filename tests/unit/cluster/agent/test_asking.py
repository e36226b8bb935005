"""Tests of requests to an agent that exits, or belongs to another user."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from potluck.cluster.agent.asking import ask
from potluck.errors import PotluckError, UsageError


@contextmanager
def agent_that(answers: Callable[[socket.socket], None], path: Path) -> Iterator[None]:
    """An agent that answers one request, and then is gone."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            answers(connection)

    thread = threading.Thread(target=serve, daemon=True)  # a failed test must not hang
    thread.start()
    with listener:
        yield
        thread.join()


def exits_without_reading(connection: socket.socket) -> None:
    connection.recv(1)  # what is left unread resets the connection


def exits_while_it_writes(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b'{"event": {}}\n{"result": {"nodes": [')


@pytest.mark.parametrize("answers", [exits_without_reading, exits_while_it_writes])
def test_an_agent_that_exits_before_it_answered(
    tmp_path: Path, answers: Callable[[socket.socket], None]
) -> None:
    path = tmp_path / "control.sock"
    with agent_that(answers, path), pytest.raises(PotluckError, match="the agent exited before"):
        list(ask(path, "state", {}))


def test_an_agent_that_exits_before_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    request = {"model": "a" * (1 << 22)}  # more than the socket holds
    with (
        agent_that(lambda connection: None, path),
        pytest.raises(PotluckError, match="the agent exited before"),
    ):
        list(ask(path, "deploy", request))


def test_the_agent_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused(socket.socket):
        def connect(self, address: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(UsageError, match="this user may not ask the agent at"):
        next(ask(tmp_path / "control.sock", "state", {}))
