"""Import everything that was installed in a folder, inside a root; print a line per module.

    python wheel_plan_imports.py SITE MODULE…

The named modules come first, then the top-level modules of every distribution in SITE. A line is
``import NAME "what went wrong"`` with JSON's text, which is empty where nothing did. Standard
library alone, Python 3.8 or newer.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
from collections.abc import Iterator


def main() -> None:
    """Import and print."""
    site, *modules = sys.argv[1:]
    for name in dict.fromkeys((*modules, *top_levels(site))):
        try:
            importlib.import_module(name)
            error_text = ""
        # A module may do anything when it is imported.
        except BaseException as error:  # noqa: BLE001
            error_text = f"{type(error).__name__}: {error}"
        print("import", name, json.dumps(error_text), flush=True)


def top_levels(site: str) -> Iterator[str]:
    """Yield names of packages and modules, except data and names that begin with an underscore."""
    for distribution in importlib.metadata.distributions(path=[site]):
        names = set()
        for file in distribution.files or ():
            first = file.parts[0]
            if len(file.parts) == 1:
                first = first.partition(".")[0] if file.suffix in (".py", ".so") else ""
            elif file.suffix not in (".py", ".so") or "." in first or "-" in first:
                first = ""
            if first.isidentifier() and not first.startswith("_") and first != "bin":
                names.add(first)
        yield from sorted(names)


if __name__ == "__main__":
    main()
