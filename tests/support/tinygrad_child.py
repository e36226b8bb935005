"""Runs checks of the tinygrad engine in a process of their own, as tinygrad has one device each.

``python -m support.tinygrad_child BACKEND MODULE``: every function of ``MODULE`` whose name begins
with ``check_`` is called, in the order written, and a line of JSON says ``[name, error]``, where no
error is empty. All of a module's checks share what was compiled for one of them.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
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
def outcomes(backend: str, module: str) -> Mapping[str, str]:
    """The errors of all checks, by name; run once. Fails with what the child wrote if it died."""
    command = [sys.executable, "-m", "support.tinygrad_child", backend, f"support.{module}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=_DEADLINE_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return dict(json.loads(line) for line in lines)


def main(backend: str, module_name: str) -> None:
    """Run all checks of the module on the backend's first device."""
    os.environ.update(tinygrad_environment(backend, None, ""))
    module = importlib.import_module(module_name)
    for name in check_names(module_name.rpartition(".")[2]):
        try:
            getattr(module, name)()
            error = ""
        except Exception:  # told to the parent, where the test of that name fails
            error = traceback.format_exc()
        print(json.dumps([name, error]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
