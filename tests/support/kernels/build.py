"""Finds what only tests need of the C++ core, and builds it: in build/, with CMake and Ninja.

``python -m support.kernels.build FOLDER`` builds what a folder below build/ has, and ``make ready``
does that before pytest starts: ``dev`` for this CPU, and ``aarch64``, to be emulated, unless the
tests that need it are on record. Tests compile nothing of the core: they ask for an artefact, and
fail at once if it is missing or older than its sources.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parents[3]

_AARCH64_COMPILER = "aarch64-linux-gnu-g++"
_BUILT = ".built"
"""The file that the Makefile touches when everything in a folder is built."""


def require_tool(name: str) -> str:
    """The path of a program; beside this Python, or on the path.

    Without it a test is reported as not shown, or fails where CI is to have everything.
    """
    return _find_tool(name) or not_shown(f"{name} is not installed")


def not_shown(reason: str) -> NoReturn:
    """End the test: it cannot show anything here. A failure on CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"CI lacks what the test needs: {reason}")
    pytest.skip(f"not shown: {reason}")


def built_for_this_cpu(pattern: str) -> Path:
    """Return the one path below build/dev that matches; fail the test if it is not up to date."""
    return _built("dev", pattern)


def built_for_aarch64(pattern: str) -> Path:
    """Return the one path below build/aarch64 that matches, or report the test as not shown."""
    require_tool(_AARCH64_COMPILER)
    return _built("aarch64", pattern)


def _built(folder: str, pattern: str) -> Path:
    if not _is_up_to_date(folder):
        target = f"build/{folder}/{_BUILT}"
        pytest.fail(f"what tests need of the core is older than cpp: run `make {target}`")
    found = list((ROOT / "build" / folder).glob(pattern))
    if len(found) != 1:
        pytest.fail(f"build/{folder}/{pattern} is missing: delete the folder, run `make ready`")
    return found[0]


@cache
def _is_up_to_date(folder: str) -> bool:
    built = ROOT / "build" / folder / _BUILT
    newest = max(path.stat().st_mtime for path in _sources())
    return built.exists() and built.stat().st_mtime >= newest


def _sources() -> Iterator[Path]:
    yield ROOT / "CMakeLists.txt"
    yield from (ROOT / "cpp").glob("**/*.*")


@cache
def installed_build() -> Path | None:
    """Return the folder in which pip built the core for this Python, if it is up to date.

    What tests need links its libraries: compiling them again takes minutes on two cores. Without an
    up-to-date folder, build/dev has its own.
    """
    checks = ROOT / "cpp" / "check"
    newest = max(path.stat().st_mtime for path in _sources() if checks not in path.parents)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    for manifest in (ROOT / "build").glob(f"{tag}-{tag}-*/install_manifest.txt"):
        if manifest.stat().st_mtime >= newest:
            return manifest.parent
    return None


@cache
def load_extension(path: Path) -> ModuleType:
    """Import the extension module ``_perturbed`` from the file ``path``.

    Once per process: nanobind warns of classes that are registered a second time.
    """
    spec = importlib.util.spec_from_file_location("_perturbed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _find_tool(name: str) -> str | None:
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


def _build(folder: str, target: str, compiler: str, *options: str) -> None:
    """Build ``target`` in build/``folder``; raise ``CalledProcessError`` if that fails."""
    path = ROOT / "build" / folder
    cmake, ninja = (_find_tool(name) or name for name in ("cmake", "ninja"))
    always = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DPOTLUCK_DEV=ON")
    configure = (cmake, "-S", str(ROOT), "-B", str(path), *always, *options)
    environment = {**os.environ, "CXX": compiler}
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL, env=environment)
    compile_it = (cmake, "--build", str(path), "--target", target, "--", "--quiet")
    subprocess.run(compile_it, check=True)


def _build_dev() -> None:
    libraries = installed_build()
    _build(
        "dev",
        "for_tests",
        _compiler_of(libraries) if libraries else "c++",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPOTLUCK_LIBRARIES={libraries or ''}",
    )


def _compiler_of(build: Path) -> str:
    """Return the path by which a build folder calls its compiler.

    ccache takes the objects of g++ and c++ for different ones, although they are one program.
    """
    lines = (build / "CMakeCache.txt").read_text("utf-8").splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith("CMAKE_CXX_COMPILER:"))


def _build_aarch64() -> None:
    if platform.machine() == "aarch64" or shutil.which(_AARCH64_COMPILER) is None:
        return  # the tests say so
    _build(
        "aarch64",
        "kernel_check",
        _AARCH64_COMPILER,
        "-DPOTLUCK_PYTHON=OFF",
        "-DCMAKE_SYSTEM_NAME=Linux",
        "-DCMAKE_SYSTEM_PROCESSOR=aarch64",
        "-DCMAKE_EXE_LINKER_FLAGS=-static",
    )


if __name__ == "__main__":
    {"dev": _build_dev, "aarch64": _build_aarch64}[sys.argv[1]]()
