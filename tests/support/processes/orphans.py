"""Processes that have lost their parent, as the workers of an agent that was killed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import psutil

from potluck.cluster.agent.worker_notes import WORKER_MODULE

SLEEP = (sys.executable, "-S", "-c", "import time; time.sleep(60)")
LIKE_A_WORKER = (*SLEEP, "-m", WORKER_MODULE)
"""To who looks at its command line, it is a worker."""


class Orphan:
    """A process whose parent can end before it does."""

    def __init__(self, *command: str) -> None:
        self._parent = subprocess.Popen(
            ["sh", "-c", '"$@" <&- >&- & echo $!; read line', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._parent.stdout is not None
        self.pid = int(self._parent.stdout.readline())
        self._process = psutil.Process(self.pid)
        while self._process.cmdline()[:1] == ["sh"]:
            time.sleep(0.005)  # until the shell's child has become the command

    def bereave(self) -> None:
        self._parent.communicate()

    @property
    def is_running(self) -> bool:
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process.kill()
        self._parent.communicate()
