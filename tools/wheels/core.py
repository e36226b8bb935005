"""Compiles the core for one target, with CMake, Ninja and zig."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tools.wheels.errors import BuildError
from tools.wheels.python_headers import include_directories
from tools.wheels.targets import Target

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreBuild:
    """Where the core of a target is compiled. ``root`` is the tree with its source; ``work`` keeps
    headers, objects and zig's cache from one build to the next.
    """

    root: Path
    work: Path
    target: Target

    @property
    def folder(self) -> Path:
        """CMake's build folder."""
        return self.work / "cmake" / self.target.name

    def build(self, name: str) -> Path:
        """Build what CMake calls ``name``; the folder that it lies in.

        Raises ``BuildError`` where a tool fails or is missing, or Python's headers cannot be had.
        """
        headers = include_directories(self.target.abi.headers, self.work / "headers")
        definitions = {
            "CMAKE_MAKE_PROGRAM": _program("ninja"),
            "CMAKE_TOOLCHAIN_FILE": _HERE / "toolchain.cmake",
            "CMAKE_MODULE_PATH": _HERE,
            "POTLUCK_MACHINE": self.target.machine,
            "POTLUCK_ZIG": _package_folder("ziglang") / "zig",
            "POTLUCK_WHEEL_PYTHON": self.target.abi.headers,
            "POTLUCK_WHEEL_STABLE_ABI": "ON" if self.target.abi.is_stable else "OFF",
            "POTLUCK_WHEEL_INCLUDE_DIRS": ";".join(map(str, headers)),
            "Python_EXECUTABLE": sys.executable,
        }
        options = [f"-D{name}={value}" for name, value in definitions.items()]
        cmake = _program("cmake")
        self._run(cmake, "-S", self.root, "-B", self.folder, "-G", "Ninja", *options)
        self._run(cmake, "--build", self.folder, "--target", name)
        return self.folder

    def module(self) -> Path:
        """Build the extension module; its file. Raises as ``build`` does."""
        return self.build("_core") / self.target.module_file

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command, env=self._environ(), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-4000:]
            raise BuildError(f"{self.target.name}: {command[0]} failed:\n{said}")

    def _environ(self) -> dict[str, str]:
        """Zig's cache, and flags in place of the user's: no path of this machine is compiled in."""
        cache = str(self.work / "zig-cache")
        paths = {self.root: ".", _package_folder("nanobind"): "nanobind"}
        flags = [f"-ffile-prefix-map={path}={short}" for path, short in paths.items()]
        return {
            **os.environ,
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
