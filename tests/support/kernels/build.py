"""Builds what only tests need of the C++ core: in build/, with CMake and Ninja, incrementally.

``python -m support.kernels.build`` builds all of it. ``make test`` does that before pytest starts,
so that tests find everything up to date.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[3]

FOR_THIS_PYTHON = f"-DPython_EXECUTABLE={sys.executable}"

AARCH64_COMPILER = "aarch64-linux-gnu-g++"


def require_tool(name: str) -> str:
    """The path of a program; beside this Python, or on the path.

    Without it a test is reported as not shown, or fails where CI is to have everything.
    """
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    return found or not_shown(f"{name} is not installed")


def not_shown(reason: str) -> NoReturn:
    """End the test: it cannot show anything here. A failure on CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks what the test needs: {reason}")
    pytest.skip(f"not shown: {reason}")


def build_for_this_cpu(target: str) -> Path:
    """Build ``target`` in build/dev, and return the folder's path."""
    return _build("dev", target, FOR_THIS_PYTHON)


def build_for_aarch64(target: str) -> Path:
    """Build ``target`` in build/aarch64 with a cross compiler, and return the folder's path."""
    return _build(
        "aarch64",
        target,
        "-DPOTLUCK_PYTHON=OFF",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        f"-DCMAKE_CXX_COMPILER={require_tool(AARCH64_COMPILER)}",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )


def _build(folder: str, target: str, *options: str) -> Path:
    """Build ``target`` in build/``folder``, and return the folder's path.

    One process at a time: several processes run tests at once, and many of them call this.
    """
    cmake, ninja = require_tool("cmake"), require_tool("ninja")
    path = ROOT / "build" / folder
    path.mkdir(parents=True, exist_ok=True)
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DPOTLUCK_DEV=ON")
    if folder == "dev":
        installed = installed_build()
        options = (*options, f"-DPOTLUCK_LIBRARIES={'' if installed is None else installed}")
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            (cmake, "-S", str(ROOT), "-B", str(path), *generator, *options),
            (cmake, "--build", str(path), "--target", target),
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return path


@cache
def installed_build() -> Path | None:
    """Return the folder in which pip built the core for this Python, if it is up to date.

    What tests build links its libraries: compiling them again takes minutes on two cores. Without
    an up-to-date folder, tests compile their own.
    """
    sources = (
        path
        for pattern in ("cpp/**/*.*", "CMakeLists.txt")
        for path in ROOT.glob(pattern)
        if "check" not in path.relative_to(ROOT).parts
    )
    newest = max(path.stat().st_mtime for path in sources)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for manifest in (ROOT / "build").glob(f"{tag}-{tag}-*/install_manifest.txt"):
        if manifest.stat().st_mtime >= newest:
            return manifest.parent
    return None


@cache
def load_extension(path: Path) -> ModuleType:
    """Import the extension module in the folder ``path`` whose file begins with ``_perturbed``.

    Once per process: nanobind warns of classes that are registered a second time.
    """
    file = next(path.glob("_perturbed*.so"))
    spec = importlib.util.spec_from_file_location("_perturbed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for each in ("all", "kernel_check"):
        build_for_this_cpu(each)
    if platform.machine() == "x86_64" and shutil.which(AARCH64_COMPILER):
        build_for_aarch64("kernel_check")
