"""Small C++ programs that check parts of the core without Python."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def build(folder: Path, source: Path, *parts: str, flags: tuple[str, ...] = ()) -> Path:
    """Compile ``source`` with ``cpp/program/<part>.cc``, as the core itself is compiled."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.fail("no C++ compiler was found; the core needs one as well")
    program = folder / source.stem
    files = [source, *(ROOT / "cpp" / "program" / f"{part}.cc" for part in parts)]
    command = [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", *flags]
    subprocess.run(
        [*command, "-I", str(ROOT / "cpp"), *map(str, files), "-o", str(program)],
        check=True,
        timeout=120,
    )
    return program


def run(program: Path, *arguments: str) -> str:
    """What it prints; fails the test with its complaint if it finds something wrong."""
    result = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    if result.returncode != 0:
        pytest.fail(f"{program.name} {arguments}: {result.returncode} {result.stderr}")
    return result.stdout
