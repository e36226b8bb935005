"""Loads Python modules (``module NAME …``) or libraries (``library PATH …``).

Prints ``{"problem": …}`` with the error of the first one that fails, empty if all load. A module or
library may crash this process.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys


def problem(kind: str, *names: str) -> str:
    """Return Python's or the dynamic linker's error for the first name that cannot be loaded."""
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
