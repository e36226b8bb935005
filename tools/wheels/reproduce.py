"""Builds wheels twice and compares: ``python -m tools.wheels.reproduce [TARGET…]``.

The second time of a copy in another folder, as another day, place, language and user would: other
time zone, locale and umask, other times of files, and nothing of the first build, zig's cache
included. Takes a few minutes for each machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from tools.wheels.core import ROOT
from tools.wheels.source import commit_time
from tools.wheels.targets import TARGETS, target_named

_CIRCUMSTANCES = (
    {"TZ": "UTC", "LC_ALL": "C.UTF-8"},
    {"TZ": "Asia/Kathmandu", "LC_ALL": "POSIX", "CXXFLAGS": "-O0"},
)
_UMASKS = (0o022, 0o077)
_FILE_TIMES = (1_000_000_000, 1_500_000_000)


def build_afresh(names: Sequence[str], folder: Path, which: int) -> dict[str, bytes]:
    """Build ``names`` of the last commit in ``folder``, under one of two kinds of circumstances."""
    source = folder / ("x" * (1 + 20 * which)) / "source"
    source.mkdir(parents=True)
    command = ("git", "-C", str(ROOT), "archive", "HEAD")
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tree:
        tree.extractall(source, filter="data")
    for path in source.rglob("*"):
        os.utime(path, (_FILE_TIMES[which],) * 2)
    environ = {"SOURCE_DATE_EPOCH": str(commit_time(ROOT)), **_CIRCUMSTANCES[which]}
    subprocess.run(
        [sys.executable, "-m", "tools.wheels.build", *names, "--out", folder / "out"],
        cwd=source,
        env={**os.environ, **environ},
        umask=_UMASKS[which],
        check=True,
    )
    return {path.name: path.read_bytes() for path in (folder / "out").iterdir()}


def main(arguments: Sequence[str]) -> int:
    """Compare; 1 if anything differs."""
    names = [target_named(name).name for name in arguments] or [each.name for each in TARGETS]
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made = [build_afresh(names, Path(folder), i) for i, folder in enumerate((first, second))]
    status = 0
    for name, content in made[0].items():
        is_same = content == made[1].get(name)
        print(f"{'the same' if is_same else 'DIFFERS '}  {name}")
        status |= not is_same
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
