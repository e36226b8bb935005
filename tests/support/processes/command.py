"""``potluck`` commands that run to their end."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.processes.environment import environment
from support.processes.forked_commands import forking_server

COMMAND = (sys.executable, "-m", "potluck")


_READ_AT_THE_START = re.compile(r"PYTHON|LD_|LC_|LANG|GLIBC_|MALLOC_|OMP_|OPENBLAS_")
"""Variables that a process reads before ``main``, so that a forked one has those of its parent."""


def run_command(
    *arguments: str,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    prefix: tuple[str, ...] = (),
    seconds: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run ``potluck`` to its end in this folder; after ``seconds`` it is ended by force.

    It is forked (``forked_commands``), but not with variables in ``env`` that it reads when it
    starts, nor with a ``prefix``, a command that starts it in some other way.
    """
    env = env or {}
    if not prefix and not any(_READ_AT_THE_START.match(name) for name in env):
        return _run_forked(arguments, stdin, environment(**env), seconds)
    return subprocess.run(
        [*prefix, *COMMAND, *arguments],
        input=stdin,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def _run_forked(
    arguments: tuple[str, ...], stdin: str, env: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as name:
        given, stdout, stderr = (Path(name) / each for each in ("stdin", "stdout", "stderr"))
        given.write_text(stdin, encoding="utf-8")
        command = forking_server().start(
            arguments,
            env=env,
            stdin=given,
            stdout=stdout,
            stderr=stderr,
            folder=Path.cwd(),
            seconds=seconds,
        )
        return subprocess.CompletedProcess(
            args=command.args,
            returncode=command.wait(),
            stdout=stdout.read_text(encoding="utf-8"),
            stderr=stderr.read_text(encoding="utf-8"),
        )


def assert_refused(
    completed: subprocess.CompletedProcess[str], code: int, message: str, hint: str
) -> None:
    """One line that contains ``message``, one hint, nothing on stdout, and the exit code."""
    assert completed.returncode == code, completed.stderr
    assert completed.stdout == ""
    lines = completed.stderr.splitlines()
    assert len(lines) == 2, completed.stderr
    error_line, advice = lines
    assert error_line.startswith("potluck: ")
    assert message in error_line
    assert advice.startswith("hint: ")
    assert hint in advice
