"""C for other machines and older C libraries: ``zig cc``, of the package ``ziglang``."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def compile_c(
    sources: Sequence[Path], output: Path, *, target: str, options: Sequence[str]
) -> None:
    """Compile and link a program. ``target`` is as ``x86_64-linux-gnu.2.17``.

    Raises ``CalledProcessError`` with the compiler's messages in ``stderr``.
    """
    subprocess.run(
        [
            *(sys.executable, "-m", "ziglang", "cc", "-target", target, "-O1"),
            *map(str, sources),
            *options,
            *("-o", str(output)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
