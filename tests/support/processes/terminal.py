"""A command on a terminal of its own, as a person uses it."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Terminal:
    """A process whose input, output and errors are a pseudoterminal."""

    process: subprocess.Popen[bytes]
    master: int
    screen: str = field(default="")
    """All that was printed."""

    def wait_for(self, text: str, seconds: float = 60) -> str:
        """Read until ``text`` comes after what earlier calls returned; what came until then."""
        deadline = time.monotonic() + seconds
        while text not in self._unseen:
            left = deadline - time.monotonic()
            assert left > 0, f"no {text!r} within {seconds} s, but {self._unseen!r}"
            if not self._read(left):
                raise AssertionError(f"no {text!r} before the end, but {self._unseen!r}")
        seen, _, self._unseen = self._unseen.partition(text)
        return seen + text

    def type(self, text: str) -> None:
        """Keys, as they are pressed: "\\n" is Enter."""
        os.write(self.master, text.encode())

    def press_ctrl_c(self) -> None:
        """To the process alone: a terminal would send it to the group of its session."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float = 60) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(1, deadline - time.monotonic()))

    def press_ctrl_d(self, seconds: float = 60) -> int:
        """Press Ctrl-D until the process ends; return the exit code.

        Once is not enough: pressed before a line editor reads keys, it becomes a NUL when the
        terminal leaves canonical mode.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.type("\4")
            while self._read(1):
                pass
        return self.process.wait(1)

    _unseen: str = ""

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.master], [], [], max(0, seconds))
        try:
            data = os.read(self.master, 65536) if ready else b""
        except OSError:  # the other side is closed
            return False
        text = data.decode(errors="replace")
        self.screen += text
        self._unseen += text
        return bool(data)


@contextmanager
def on_terminal(command: Sequence[str], env: Mapping[str, str]) -> Iterator[Terminal]:
    """Start ``command`` on a terminal of 100 columns; it is ended with the block."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        command,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**env, "TERM": "xterm", "COLUMNS": "100"},
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process=process, master=master)
    finally:
        process.kill()
        process.wait()
        os.close(master)
