"""Processes that keep cores busy during a measurement."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(number: int, *, core: int | None = None, in_session: bool = False) -> Iterator[None]:
    """Let ``number`` processes compute, bound to ``core`` if it is given.

    With ``in_session`` each is in a session of its own, as another user's: the system shares its
    cores out among sessions first, where it groups them (sched_autogroup).
    """
    command = [sys.executable, "-c", "while True: pass"]
    computing = [subprocess.Popen(command, start_new_session=in_session) for _ in range(number)]
    try:
        for process in computing:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in computing:
            process.kill()
            process.wait()
