"""The program that starts others under an emulator: ``launch.c``."""

from __future__ import annotations

import platform
from pathlib import Path

from tools.roots.made_once import FOLDER, digest, made_once
from tools.roots.zig import compile_c

_SOURCE = Path(__file__).with_name("launch.c")


def launcher() -> Path:
    """Return the launcher for this machine, a static program. Raises as ``compile_c`` does."""
    path = FOLDER / f"launcher-{digest(_SOURCE.read_bytes())}"
    with made_once(path) as made:
        if made:
            target = f"{platform.machine()}-linux-musl"
            compile_c([_SOURCE], made / "launch", target=target, options=["-static"])
    return path / "launch"
