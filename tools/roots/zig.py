"""Compile C for other machines and older C libraries, with the compiler of our wheels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_TOOLS = _ROOT / "build" / "wheels" / "tools"
"""The Makefile's folder for building wheels, which has the package ``ziglang``."""


def compile_c(
    sources: Sequence[Path], output: Path, *, target: str, options: Sequence[str]
) -> None:
    """Compile and link a program. ``target`` is as ``x86_64-linux-gnu.2.17``.

    Raises ``CalledProcessError`` with the compiler's messages in ``stderr``.
    """
    installed = str((_TOOLS / ".installed").relative_to(_ROOT))
    _run("make", "--no-print-directory", f"PYTHON={sys.executable}", installed)
    zig = (str(_TOOLS / "bin" / "python"), "-m", "ziglang", "cc", "-target", target, "-O1")
    _run(*zig, *map(str, sources), *options, "-o", str(output))


def _run(*command: str) -> None:
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True)
