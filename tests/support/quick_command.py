"""The ``potluck`` command in processes that are forked from one that has imported everything.

For commands that are refused or ask an agent, of which a module runs dozens: to start Python takes
most of their time. What starts agents, or measures time or memory, is started as its users do.
"""

from __future__ import annotations

import atexit
import functools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from support.command import environment

_SECONDS = 60


class QuickCommand:
    """Use it as a context manager."""

    def __enter__(self) -> Self:
        self._turn = threading.Lock()
        self._directory = tempfile.TemporaryDirectory()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.quick_command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(PYTHONPATH=os.pathsep.join(path for path in sys.path if path)),
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(_SECONDS)
        self._process.stdout.close()
        self._directory.cleanup()

    def run(
        self, *arguments: str, env: Mapping[str, str] | None = None, seconds: float = _SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run ``potluck`` to its end, with this process's environment and ``env``.

        After ``seconds`` it is ended by ``SIGALRM``. Threads take turns.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder = Path(self._directory.name)
        request = {
            "arguments": arguments,
            "environment": environment(**(env or {})),
            "folder": str(folder),
            "seconds": math.ceil(seconds),
        }
        with self._turn:
            self._process.stdin.write(json.dumps(request) + "\n")
            answer = self._process.stdout.readline()
            assert answer, "the process that forks commands has ended"
            return self._completed(arguments, int(answer), folder)

    @staticmethod
    def _completed(
        arguments: tuple[str, ...], status: int, folder: Path
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(
            args=["potluck", *arguments],
            returncode=status,
            stdout=(folder / "stdout").read_text(encoding="utf-8"),
            stderr=(folder / "stderr").read_text(encoding="utf-8"),
        )


@functools.cache
def quick_command() -> QuickCommand:
    """One for all tests of this process, which ends with it."""
    command = QuickCommand().__enter__()
    atexit.register(command.__exit__, None, None, None)
    return command


def _serve() -> None:
    """A request per line, its exit status per line."""
    import potluck.cli.app
    import potluck.cli.cluster  # noqa: F401 - what commands import when they run

    # Not from sys.stdin: commands set its encoding, which is possible only before the first read.
    for line in os.fdopen(os.dup(0), encoding="utf-8"):
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(request["seconds"])
            _become(request["arguments"], request["environment"], Path(request["folder"]))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(arguments: list[str], environ: dict[str, str], folder: Path) -> None:
    """Run the command in this process, and end it."""
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            opened = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = ["potluck", *arguments]
        from potluck.cli.main import main

        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - the child never goes back to the loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
