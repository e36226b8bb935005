"""``make demo``'s program: three agents, an answer, and nothing left, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from support.processes.waiting import eventually

ROOT = Path(__file__).parents[2]
SECONDS = 60


class Demo:
    """The program, in a process group of its own as a terminal would start it."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tools" / "demo.py")],
            env={**os.environ, "TMPDIR": str(directory), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def interrupt(self) -> None:
        """Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def catches(self, number: signal.Signals) -> bool:
        """Whether it has a handler for a signal."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
        return bool(int(caught, 16) >> (number - 1) & 1)

    def await_line(self, start: str) -> None:
        """Wait until it has written a line that begins with ``start``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(start):
                return
        raise AssertionError(f"it ended without saying {start!r}")

    def finish(self) -> tuple[str, str]:
        """stdout and stderr, once it has ended."""
        return self.process.communicate(timeout=90)

    def leftovers(self) -> list[str]:
        """Files in its temporary directory, and processes that work in it or name it."""
        left = [str(path) for path in self.directory.iterdir()]
        for process in psutil.process_iter():
            try:
                inherited = process.environ().get("TMPDIR")
            except psutil.Error:
                continue
            if inherited == str(self.directory):
                left.append(" ".join(process.cmdline()))
        return left


def test_the_demo_answers_over_three_agents(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    output, errors = demo.finish()
    assert demo.process.returncode == 0, errors
    stages = re.findall(r"^(\d) +([0-9a-f]{16})  (\S+)  (.*?)  +(\S+ MiB)$", output, re.MULTILINE)
    assert [stage[0] for stage in stages] == ["0", "1", "2"]
    assert len({stage[1] for stage in stages}) == 3
    assert stages[0][3].startswith("embedding + [0, ")
    assert stages[2][3].endswith(", 12) + head")
    story = output.partition("Tell me a story about a little fox.\n\n")[2]
    assert len(story.split()) > 60
    assert re.search(
        r"prefill \d+ tokens in .* tokens/s\); decode \d+ tokens in .* tokens/s", story
    )
    assert "How to go on:" in story
    assert errors == ""
    assert demo.leftovers() == []


def has_handlers(demo: Demo) -> None:
    """Nothing is imported yet."""
    # Python handles SIGINT itself; SIGHUP is the last signal for which the program has a handler.
    eventually(lambda: demo.catches(signal.SIGHUP), within=SECONDS, what="it has handlers")


def starts_agents(demo: Demo) -> None:
    """The first may not have been started."""
    demo.await_line("Starting 3 agents")


def has_started_agents(demo: Demo) -> None:
    """The others join the first."""
    eventually(
        lambda: any(demo.directory.glob("*/3.stderr")), within=SECONDS, what="all are started"
    )


def deploys(demo: Demo) -> None:
    """All agents are up, and their workers start."""
    demo.await_line("Deploying demo")


@pytest.mark.parametrize(
    "reaches", [has_handlers, starts_agents, has_started_agents, deploys], ids=lambda f: f.__name__
)
def test_after_ctrl_c_nothing_is_left(tmp_path: Path, reaches: Callable[[Demo], None]) -> None:
    demo = Demo(tmp_path)
    reaches(demo)
    demo.interrupt()
    _, errors = demo.finish()
    assert demo.process.returncode == 130, errors
    assert "Traceback" not in errors
    assert demo.leftovers() == []


def test_a_second_ctrl_c_leaves_nothing_either(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    has_started_agents(demo)
    demo.interrupt()
    demo.interrupt()
    demo.finish()
    assert demo.process.returncode == 130
    assert demo.leftovers() == []


def test_what_an_agent_says_is_shown_when_it_does_not_start(tmp_path: Path) -> None:
    demo = Demo(tmp_path, POTLUCK_THREADS="many")
    _, errors = demo.finish()
    assert demo.process.returncode == 1
    assert errors.startswith("potluck: the demo failed: agent 1 did not start; it said:\n")
    assert "POTLUCK_THREADS" in errors
    assert demo.leftovers() == []
