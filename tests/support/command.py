"""The ``potluck`` command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

from support.icds import NO_ICDS

COMMAND = (sys.executable, "-m", "potluck")


def environment(**changes: str) -> dict[str, str]:
    """This process's environment with ``changes``, without settings of Potluck and without OpenCL
    drivers: what this machine has would cost each process half a second."""
    kept = {name: value for name, value in os.environ.items() if "POTLUCK" not in name}
    return {**kept, **NO_ICDS, **changes}


def run_command(
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    prefix: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``potluck`` to its end. ``prefix`` is a command that starts it in some other way."""
    return subprocess.run(
        [*prefix, *COMMAND, *arguments],
        input=stdin,
        env=environment(**(env or {})),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def assert_refused(
    completed: subprocess.CompletedProcess[str], code: int, message: str, hint: str
) -> None:
    """One line that contains ``message``, one hint, nothing on stdout, and the exit code."""
    assert completed.returncode == code, completed.stderr
    assert completed.stdout == ""
    lines = completed.stderr.splitlines()
    assert len(lines) == 2, completed.stderr
    said, advice = lines
    assert said.startswith("potluck: ")
    assert message in said
    assert advice.startswith("hint: ")
    assert hint in advice
