"""``make demo``'s program: three agents, an answer, and nothing left, whatever happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]


class Demo:
    """The program, in a process group of its own as a terminal would start it."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self._directory = directory
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

    def finish(self) -> tuple[str, str]:
        """stdout and stderr, once it has ended."""
        return self.process.communicate(timeout=90)

    def leftovers(self) -> list[str]:
        """Files in its temporary directory, and processes that work in it or name it."""
        left = [str(path) for path in self._directory.iterdir()]
        for process in psutil.process_iter():
            try:
                inherited = process.environ().get("TMPDIR")
            except psutil.Error:
                continue
            if inherited == str(self._directory):
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


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.5])
def test_after_ctrl_c_nothing_is_left(tmp_path: Path, seconds: float) -> None:
    demo = Demo(tmp_path)
    time.sleep(seconds)
    demo.interrupt()
    _, errors = demo.finish()
    # On a fast machine it may have been done by then.
    assert demo.process.returncode in ((130,) if seconds < 2 else (130, 0)), errors
    assert "Traceback" not in errors
    assert demo.leftovers() == []


def test_a_second_ctrl_c_leaves_nothing_either(tmp_path: Path) -> None:
    demo = Demo(tmp_path)
    time.sleep(1.5)
    demo.interrupt()
    demo.interrupt()
    demo.finish()
    assert demo.process.returncode == 130
    assert demo.leftovers() == []


def test_what_an_agent_says_is_shown_when_it_does_not_start(tmp_path: Path) -> None:
    demo = Demo(tmp_path, POTLUCK_COLOUR="blue")
    _, errors = demo.finish()
    assert demo.process.returncode == 1
    assert errors.startswith("potluck: the demo failed: agent 1 did not start; it said:\n")
    assert "POTLUCK_COLOUR" in errors
    assert demo.leftovers() == []
