"""Runs checks of the tinygrad engine in a process of their own, as tinygrad has one device each.

``python -m support.tinygrad_child BACKEND MODULE…``: every function of these modules whose name
begins with ``check_`` is called, in the order written, and a line of JSON says ``[name, error]``,
where no error is empty. All checks share what was compiled for one of them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from potluck.engines.tinygrad.environment import tinygrad_environment

TESTS = Path(__file__).resolve().parents[1]
BACKENDS = ("tinygrad:CPU", "tinygrad:CL")
_DEADLINE_SECONDS = 280


def check_names(module: str) -> tuple[str, ...]:
    """The checks that ``support.MODULE`` has, read from its text: it cannot be imported here."""
    text = (TESTS / "support" / f"{module}.py").read_text()
    lines = (line for line in text.splitlines() if line.startswith("def check_"))
    return tuple(line.removeprefix("def ").partition("(")[0] for line in lines)


@cache
def outcomes(
    backends: tuple[str, ...], modules: tuple[str, ...]
) -> Mapping[str, Mapping[str, str]]:
    """The errors of all checks by name, by backend; run once, all backends at the same time."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(backends, pool.map(lambda one: _run(one, modules), backends), strict=True))


def main(backend: str, modules: Sequence[str]) -> None:
    """Run all checks of the modules on the backend's first device."""
    os.environ.update(tinygrad_environment(backend, None, ""))
    for name in modules:
        module = importlib.import_module(f"support.{name}")
        for check in check_names(name):
            print(json.dumps([check, _error_of(getattr(module, check))]), flush=True)


def _run(backend: str, modules: Sequence[str]) -> Mapping[str, str]:
    """Fails with what the child wrote if it died."""
    done = subprocess.run(
        [sys.executable, "-m", "support.tinygrad_child", backend, *modules],
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))


def _error_of(check: object) -> str:
    """Empty if it passes. Told to the parent, where the test of the check's name fails."""
    assert callable(check)
    try:
        check()
    except Exception:  # noqa: BLE001  the boundary of the process
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
