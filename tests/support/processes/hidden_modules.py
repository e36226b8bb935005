"""Potluck as where something compiled cannot be loaded, in a process and all that it starts."""

from __future__ import annotations

from pathlib import Path

REASON = "cannot load Potluck's compiled core: libstdc++.so.6: version `GLIBCXX_3.4.21' not found"

_SITE = """
import sys

class Hidden:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in {modules!r}:
            raise ImportError("libstdc++.so.6: version `GLIBCXX_3.4.21' not found")

sys.meta_path.insert(0, Hidden)
"""


def hide_core(directory: Path) -> str:
    """``hide`` for Potluck's own."""
    return hide(directory, "potluck.kernels._core")


def hide(directory: Path, *modules: str) -> str:
    """A folder to begin PYTHONPATH with: every Python runs its ``sitecustomize`` when it starts."""
    directory.mkdir(exist_ok=True)
    (directory / "sitecustomize.py").write_text(_SITE.format(modules=modules))
    return str(directory)
