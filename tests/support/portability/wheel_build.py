"""Our wheels as ``make wheels`` makes them, and the check program compiled like them.

What an earlier run left in build/wheels is used where it is still true: a minute or two at first,
seconds later. Where Debian's archive cannot be reached nothing is shown, and that is said, on CI
too: it is other people's machine.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from support.kernels.build import ROOT, require_tool

from tools.wheels.errors import NOT_DOWNLOADED

BUILD_SECONDS = 1500
"""For a test, where the first one builds the wheels of both machines: minutes on a busy one."""


WORK = ROOT / "build" / "wheels"
TOOLS = WORK / "tools" / "bin" / "python"
"""The interpreter that has what makes wheels, auditwheel and abi3audit too."""


def built_wheels() -> tuple[Path, ...]:
    """All of our wheels; ``make wheels`` has checked them. One process builds at a time."""
    return tuple(path for path in _built() if path.suffix == ".whl")


def built_sdist() -> Path:
    """The sdist that is made with them."""
    (path,) = (path for path in _built() if path.suffix == ".gz")
    return path


@cache
def _built() -> tuple[Path, ...]:
    folder = WORK / "tested"
    with _lock():
        printed = _make("wheels", f"OUT={folder}")
    return tuple(folder / name for _, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", printed, re.M))


@cache
def kernel_check_program(machine: str) -> Path:
    """``kernel_check`` for ``machine``, by the compiler that wheels are made with."""
    with _lock():
        _make("build/wheels/tools/.installed")
        command = (TOOLS, "-m", "tools.wheels.core", machine, "kernel_check")
        return Path(_output(*command).strip())


@contextmanager
def _lock() -> Iterator[None]:
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(*arguments: str) -> str:
    return _output(
        require_tool("make"), "--no-print-directory", f"PYTHON={sys.executable}", *arguments
    )


def _output(*command: str | Path) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if NOT_DOWNLOADED in done.stderr:
        pytest.skip(f"not shown: {done.stderr.strip()[-1000:]}")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
