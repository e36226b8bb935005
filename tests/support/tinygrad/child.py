"""Runs checks of the tinygrad engine in a process of their own, as tinygrad has one device each.

``python -m support.tinygrad.child BACKEND[/VARIANT] MODULE…``: every function of these modules
whose name begins with ``check_`` is called, in the order written, and a line of JSON says
``[name, error]``, where no error is empty. All checks share what was compiled for one of them.

Those that begin with ``check_family_`` are left out on PoCL: they combine ops that other checks try
on every backend, and compiling a family's kernels there takes seconds.
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

from potluck.engines.tinygrad_environment import tinygrad_environment

TESTS = Path(__file__).resolve().parents[2]
BACKENDS = ("tinygrad:CPU", "tinygrad:CL")
"""Those that every machine with clang and PoCL has."""
NVIDIA_BACKENDS = ("tinygrad:CUDA/ptx", "tinygrad:CUDA/nvrtc")
"""Those that need an NVIDIA GPU, and the second one NVRTC of the CUDA toolkit."""
_DEADLINE_SECONDS = 840
"""Kernels are compiled for minutes where two slow cores are shared with other tests."""


def check_names(module: str, backend: str) -> tuple[str, ...]:
    """Return the checks of ``support.MODULE`` that run on ``backend``, in the order written.

    They are read from its text: it cannot be imported here.
    """
    text = (TESTS / "support" / "tinygrad" / f"{module}.py").read_text()
    lines = (line for line in text.splitlines() if line.startswith("def check_"))
    names = (line.removeprefix("def ").partition("(")[0] for line in lines)
    is_slow = backend == "tinygrad:CL"
    return tuple(name for name in names if not (is_slow and name.startswith("check_family_")))


@cache
def outcomes(
    backends: tuple[str, ...], modules: tuple[str, ...]
) -> Mapping[str, Mapping[str, str]]:
    """The errors of all checks by name, by backend; run once, all backends at the same time."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(backends, pool.map(lambda one: _run(one, modules), backends), strict=True))


def main(backend: str, modules: Sequence[str]) -> None:
    """Run all checks of the modules on the backend's first device."""
    backend, _, variant = backend.partition("/")
    os.environ.update(tinygrad_environment(backend, None, variant))
    for name in modules:
        module = importlib.import_module(f"support.tinygrad.{name}")
        for check in check_names(name, backend):
            print(json.dumps([check, _error_of(getattr(module, check))]), flush=True)


def _run(backend: str, modules: Sequence[str]) -> Mapping[str, str]:
    """Fails with what the child wrote if it died."""
    done = subprocess.run(
        [sys.executable, "-m", "support.tinygrad.child", backend, *modules],
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
