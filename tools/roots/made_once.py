"""Folders that take a while to make, and are kept: in ``build/roots``."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "roots"


@contextmanager
def made_once(path: Path) -> Iterator[Path | None]:
    """Yield an empty folder to fill, which then becomes ``path``, or None if ``path`` exists.

    Only one process fills it, and the others wait. A folder that was not filled completely is
    removed the next time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            yield None
            return
        unfinished = path.with_name(f"{path.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        yield unfinished
        unfinished.rename(path)


def digest(*inputs: bytes) -> str:
    """Return a name for what is made from these inputs."""
    return hashlib.sha256(b"\0".join(inputs)).hexdigest()[:12]
