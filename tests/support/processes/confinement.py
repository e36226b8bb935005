"""Commands that start others with less than this process has: another user, limits, no /sys.

Each says "not shown" where the machine does not let it be done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from support.kernels.build import not_shown, require_tool
from support.processes.environment import environment

NOBODY = 65534
_END_SECONDS = 5.0

_STARTS_PYTHON = (
    "import subprocess, sys, potluck.probe; subprocess.run([sys.executable, '-c', ''], check=True)"
)


@contextmanager
def control_group(path: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """A control group of version 1 of the test's own, until the processes in it have ended."""
    try:
        path.mkdir()
    except OSError as error:
        not_shown(f"control groups of version 1 can't be made here: {error}")
    try:
        for name, text in files.items():
            (path / name).write_text(text)
        yield path
    finally:
        deadline = time.monotonic() + _END_SECONDS
        while (path / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)  # children of what was killed notice it a moment later
        path.rmdir()


def inside(path: Path) -> tuple[str, ...]:
    """The command that enters a control group and goes on."""
    return ("sh", "-c", f'echo $$ > {path}/cgroup.procs; exec "$@"', "sh")


def limited(option: str, kib: int) -> tuple[str, ...]:
    """The command that goes on under a limit of ``ulimit``, soft and hard."""
    return ("sh", "-c", f'ulimit {option} {kib}; exec "$@"', "sh")


def as_user(user_id: int = NOBODY) -> tuple[str, ...]:
    """The command that goes on as an ordinary user.

    Where such a user may not read Python or these sources, it may read everything, which root's
    tests often lie in; it still may write nothing.
    """
    if os.geteuid() != 0:
        not_shown("only root can become another user")
    drop = (
        *(require_tool("setpriv"), f"--reuid={user_id}", f"--regid={user_id}"),
        "--clear-groups",
    )
    may_read = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    for command in (drop, (*drop, *may_read)):
        check = (*command, sys.executable, "-c", _STARTS_PYTHON)
        done = subprocess.run(check, env=environment(), capture_output=True, check=False)
        if done.returncode == 0:
            return command
    return not_shown("an ordinary user may not read these sources")


def covered(directory: str | Path, options: str) -> tuple[str, ...]:
    """The command that puts an empty file system over a directory, for itself alone."""
    command = (require_tool("unshare"), "--mount", "sh", "-c")
    mount = f"mount -t tmpfs -o {options} none {directory}"
    completed = subprocess.run([*command, mount], capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        not_shown(f"mount namespaces can't be made here: {completed.stderr.strip()}")
    return (*command, f'{mount} && exec "$@"', "sh")
