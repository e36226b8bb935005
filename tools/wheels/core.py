"""Compiles the core, with CMake, Ninja and zig: what knows no Python once for each machine, and the
module for each target.

``python -m tools.wheels.core MACHINE NAME`` builds what CMake calls NAME, without Python, and
prints where it is. Headers, objects and zig's cache stay in build/wheels from one build to the
next.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tools.wheels.errors import BuildError
from tools.wheels.python_headers import include_directories
from tools.wheels.targets import MACHINES, Target

ROOT = Path(__file__).resolve().parents[2]

_HERE = Path(__file__).resolve().parent
_WORK = ROOT / "build" / "wheels"
_LIBRARIES = ("potluck_kernels", "potluck_program", "potluck_measure", "potluck_hashing")


def module(target: Target) -> Path:
    """Compile the extension module, and return its path.

    Raises ``BuildError`` if a tool fails or is missing, or if Python's headers are unavailable.
    """
    headers = include_directories(target.abi.headers, _WORK / "headers")
    definitions = {
        "POTLUCK_PYTHON": "ON",
        "POTLUCK_LIBRARIES": str(without_python(target.machine, *_LIBRARIES)),
        "POTLUCK_WHEEL_PYTHON": target.abi.headers,
        "POTLUCK_WHEEL_STABLE_ABI": "ON" if target.abi.is_stable else "OFF",
        "POTLUCK_WHEEL_INCLUDE_DIRS": ";".join(map(str, headers)),
        "Python_EXECUTABLE": sys.executable,
    }
    folder = _WORK / "cmake" / target.name
    _build(folder, target.machine, definitions, "_core")
    return folder / target.module_file


def without_python(machine: str, *names: str) -> Path:
    """Build what CMake calls ``names`` for a machine; the build folder. Raises ``BuildError``."""
    if machine not in MACHINES:
        raise BuildError(f"no machine is called {machine}; there are {', '.join(MACHINES)}")
    folder = _WORK / "cmake" / machine
    _build(folder, machine, {"POTLUCK_PYTHON": "OFF"}, *names)
    return folder


def _build(folder: Path, machine: str, definitions: Mapping[str, str], *names: str) -> None:
    options = {
        **definitions,
        "CMAKE_MAKE_PROGRAM": _program("ninja"),
        "CMAKE_TOOLCHAIN_FILE": str(_HERE / "toolchain.cmake"),
        "CMAKE_MODULE_PATH": str(_HERE),
        "POTLUCK_MACHINE": machine,
        "POTLUCK_ZIG": str(_package_folder("ziglang") / "zig"),
    }
    given = [f"-D{key}={value}" for key, value in options.items()]
    cmake = _program("cmake")
    _run(cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *given)
    _run(cmake, "--build", folder, "--target", *names)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-4000:]
        raise BuildError(f"{' '.join(map(str, command))} failed:\n{output}")


def _environ() -> dict[str, str]:
    """Return the environment of the tools: no variables of the user's, a dozen of which compilers
    heed, and flags that keep this machine's paths out of the output.
    """
    cache = str(_WORK / "zig-cache")
    paths = {ROOT: ".", _package_folder("nanobind"): "nanobind"}
    flags = [f"-ffile-prefix-map={path}={short}" for path, short in paths.items()]
    return {
        "PATH": os.defpath,
        "ZIG_GLOBAL_CACHE_DIR": cache,
        "ZIG_LOCAL_CACHE_DIR": cache,
        "CXXFLAGS": " ".join(flags),
        "LDFLAGS": "",
    }


def _program(name: str) -> str:
    """Return the path of a program that is installed with this Python."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        raise BuildError(f"{name} is not installed beside {sys.executable}")
    return found


def _package_folder(name: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"{name} is not installed for {sys.executable}")
    return Path(spec.origin).parent


if __name__ == "__main__":
    try:
        print(without_python(sys.argv[1], sys.argv[2]) / sys.argv[2])
    except BuildError as error:
        sys.exit(f"wheels: {error}")
