"""Calls a function with the view of a mocked machine: ``support.machines.umockdev`` starts it."""

from __future__ import annotations

import importlib
import operator
import os
import shutil
import sys
from pathlib import Path

import msgspec

from potluck.host.system import System

_NOBODY = 65534


def main(tree: str, function: str, *forbidden: str) -> None:
    testbed = Path(os.environ["UMOCKDEV_DIR"])
    shutil.copytree(Path(tree, "sys"), testbed / "sys", symlinks=True, dirs_exist_ok=True)
    module, _, name = function.partition(":")
    call = operator.attrgetter(name)(importlib.import_module(module))
    system = System(
        sys=Path("/sys"),
        proc=Path(tree, "proc"),
        dev=testbed / "dev",
        files=Path(tree, "files"),
    )
    if forbidden:
        # Once before, as it may import what a Python in a home directory shows to its owner only.
        call(system)
        _forbid(testbed, forbidden)
    answer = msgspec.json.encode(call(system))
    sys.stdout.buffer.write(answer.replace(str(testbed / "dev").encode(), b"/dev"))


def _forbid(testbed: Path, device_files: tuple[str, ...]) -> None:
    testbed.chmod(0o755)
    for file in device_files:
        (testbed / file.removeprefix("/")).chmod(0)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)


if __name__ == "__main__":
    main(*sys.argv[1:])
