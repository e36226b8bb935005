"""The behavior of a root's dynamic linker with shared objects, each opened alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.roots.enter import Root
from tools.roots.interpreter import portable_python

OPENED = "/mnt/opened"
"""The path of the files in a root."""


def try_loads(root: Root, folder: Path, files: Sequence[str]) -> Mapping[str, str]:
    """Open each of ``files``, relative to ``folder``, as Python opens extension modules.

    To each what ``dlerror()`` says, or nothing where it loads; ``signal 11`` where it ends the
    process that opens it. Raises as ``portable_python`` and ``Root.run`` do, and ``RuntimeError``
    where not all are answered.
    """
    python = portable_python(root.machine)
    entered = dataclasses.replace(root, shared={**root.shared, "python": python, "opened": folder})
    input_lines = "".join(f"{OPENED}/{file}\n" for file in files)
    done = entered.run("/mnt/python/bin/try_load", stdin=input_lines, timeout_seconds=1800)
    answers = done.stdout.splitlines()
    if done.returncode != 0 or len(answers) != len(files):
        raise RuntimeError(f"{root.name}: {done.stderr[-2000:]}")
    return dict(zip(files, answers, strict=True))
