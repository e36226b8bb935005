"""Ask the agent of this machine, through its control socket (``control``).

The command line imports this, so it depends on nothing of the agent.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from potluck.errors import ParameterError, PotluckError, UsageError
from potluck.types.text import is_utf8


class RemoteError(PotluckError):
    """The error that the agent answered."""

    def __init__(self, message: str, *, hint: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = exit_code


def absolute(model: str) -> str:
    """Return MODEL, with an absolute path if it is one on this machine, for other processes.

    A link to a file stays: in the hub's cache the name of a model is that of a link. A path that
    cannot be read stays too: the process that reads the model reports why.
    """
    if model in ("", "demo"):
        return model
    try:
        path = Path(model).expanduser()
        if not path.exists():
            return model
        return str(path.resolve() if path.is_dir() else path.parent.resolve() / path.name)
    except (OSError, RuntimeError):
        return model


def ask(path: Path, method: str, params: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Send a request to the agent behind ``path``; yield events, and last the result. Blocking.

    Raises ``UsageError`` if no agent runs there, or that of another user, and for texts that are
    not UTF-8, the agent's error, and ``PotluckError`` if it exits before it has answered.
    """
    request = _encoded(method, params)
    with contextlib.ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX))
        try:
            connection.connect(str(path))
        except PermissionError as error:
            raise UsageError(
                f"this user may not ask the agent at {path}",
                hint="run the command as the user whose agent it is",
            ) from error
        except OSError as error:
            raise UsageError(
                f"no agent runs here (nothing answers at {path})",
                hint="start one with potluck up, or name its --state DIRECTORY",
            ) from error
        with contextlib.suppress(ConnectionError):  # it exited
            connection.sendall(request)
            for line in opened.enter_context(connection.makefile("rb")):
                if not line.endswith(b"\n"):
                    break  # it exited while it wrote
                document = json.loads(line)
                if "error" in document:
                    raise RemoteError(**document["error"])
                yield document
                if "result" in document:
                    return
    raise PotluckError("the agent exited before it answered", hint="see the agent's log")


def _encoded(method: str, params: dict[str, Any]) -> bytes:
    """Encode a request. Agents send names and paths to each other as text."""
    for name, value in params.items():
        if isinstance(value, str) and not is_utf8(value):
            raise ParameterError(
                name,
                f"{value} is not UTF-8, and cannot be sent to other nodes",
                hint="give it another name",
            )
    return json.dumps({"method": method, "params": params}).encode("utf-8") + b"\n"
