"""The generated pages, and the functions that generate them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tools.reference import commands, http_fields, metrics, settings

DIRECTORY = Path(__file__).parents[2] / "docs" / "reference"


PAGES: Mapping[str, Callable[[], str]] = {
    "cli.md": commands.page,
    "http-fields.md": http_fields.page,
    "metrics.md": metrics.page,
    "settings.md": settings.page,
}
