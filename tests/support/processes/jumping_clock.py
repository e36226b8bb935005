"""A wall clock that jumps when a test says so, for one process and all that it starts.

A small library that is preloaded (built with gcc) adds an offset to what ``clock_gettime``,
``gettimeofday`` and ``time`` answer of the wall clock; monotonic clocks go on, as on a machine
whose clock is set.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

from support.kernels.build import require_tool

_SOURCE = Path(__file__).with_name("jumping_clock.c")


class JumpingClock:
    """The clock of the processes that have its ``environ``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / "libjumping_clock.so"
        command = [require_tool("gcc"), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        command += ["-D_GNU_SOURCE", str(_SOURCE), "-ldl", "-o", str(library)]
        subprocess.run(command, check=True)
        self._file = folder / "offset"
        self._file.write_bytes(bytes(8))
        self.environ = {"LD_PRELOAD": str(library), "CLOCK_OFFSET_FILE": str(self._file)}

    def jump(self, seconds: int) -> None:
        """Be ``seconds`` ahead of the machine's clock from now on, or behind if negative."""
        with self._file.open("r+b") as file:  # in place: it is mapped
            file.write(struct.pack("=q", seconds))
