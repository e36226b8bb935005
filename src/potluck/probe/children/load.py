"""Loads things and prints why the first that fails does: ``module NAME …`` of Python, or ``library
PATH …``.

Prints ``{"problem": …}``, empty if it loads. What it loads may do anything to this process.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys


def problem(kind: str, *names: str) -> str:
    """What Python, or the dynamic linker, says of the first that cannot be loaded."""
    try:
        for name in names:
            if kind == "module":
                importlib.import_module(name)
            else:
                ctypes.CDLL(name)
    except Exception as error:  # noqa: BLE001 - importing a module runs it
        return f"{error}" or type(error).__name__
    return ""


if __name__ == "__main__":
    print(json.dumps({"problem": problem(*sys.argv[1:])}))  # noqa: T201 - the answer of a child
