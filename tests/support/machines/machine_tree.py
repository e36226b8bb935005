"""Trees of other machines, for the probe to read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from potluck.host.system import System


def machine_tree(root: Path, files: Mapping[str, str | bytes | Path]) -> System:
    """Write ``files`` below ``root`` and give the view of the machine that they are.

    Keys are paths like ``proc/meminfo``. A text gets the newline that the kernel ends its files
    with; bytes are written as they are; a ``Path`` is what a symbolic link points to.
    """
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            path.symlink_to(content)
        else:
            path.write_bytes(content if isinstance(content, bytes) else f"{content}\n".encode())
    return System(sys=root / "sys", proc=root / "proc", dev=root / "dev", files=root)
