"""Compiles the core for one target, with CMake, Ninja and zig.

``python -m tools.wheels.core TARGET NAME`` builds what CMake calls NAME, and prints where it is.
Headers, objects and zig's cache stay in build/wheels from one build to the next.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.wheels.errors import BuildError
from tools.wheels.python_headers import include_directories
from tools.wheels.targets import Target, target_named

ROOT = Path(__file__).resolve().parents[2]

_HERE = Path(__file__).resolve().parent
_WORK = ROOT / "build" / "wheels"


def module(target: Target) -> Path:
    """The extension module, compiled. Raises ``BuildError``."""
    return build(target, "_core") / target.module_file


def build(target: Target, name: str) -> Path:
    """Build what CMake calls ``name``; the folder that it lies in.

    Raises ``BuildError`` where a tool fails or is missing, or Python's headers cannot be had.
    """
    folder = _WORK / "cmake" / target.name
    headers = include_directories(target.abi.headers, _WORK / "headers")
    definitions = {
        "CMAKE_MAKE_PROGRAM": _program("ninja"),
        "CMAKE_TOOLCHAIN_FILE": _HERE / "toolchain.cmake",
        "CMAKE_MODULE_PATH": _HERE,
        "POTLUCK_MACHINE": target.machine,
        "POTLUCK_ZIG": _package_folder("ziglang") / "zig",
        "POTLUCK_WHEEL_PYTHON": target.abi.headers,
        "POTLUCK_WHEEL_STABLE_ABI": "ON" if target.abi.is_stable else "OFF",
        "POTLUCK_WHEEL_INCLUDE_DIRS": ";".join(map(str, headers)),
        "Python_EXECUTABLE": sys.executable,
    }
    options = [f"-D{key}={value}" for key, value in definitions.items()]
    cmake = _program("cmake")
    _run(cmake, "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
    _run(cmake, "--build", folder, "--target", name)
    return folder


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, env=_environ(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise BuildError(f"{' '.join(map(str, command))} failed:\n{said}")


def _environ() -> dict[str, str]:
    """All that the tools are told: no variable of the user's, of which compilers heed a dozen, and
    flags that keep this machine's paths out of what is compiled.
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
    """A program that is installed with this Python."""
    found = shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        raise BuildError(f"{name} is not installed beside {sys.executable}")
    return found


def _package_folder(name: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"{name} is not installed for {sys.executable}")
    return Path(spec.origin).parent


if __name__ == "__main__":
    try:
        print(build(target_named(sys.argv[1]), sys.argv[2]) / sys.argv[2])
    except BuildError as error:
        sys.exit(f"wheels: {error}")
