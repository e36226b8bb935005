"""Writes every generated page of ``docs/reference``, and the settings into the schemas of
``src/potluck/cli/schemas``: ``python -m tools.reference``.
"""

from __future__ import annotations

from tools.reference.pages import DIRECTORY, PAGES
from tools.reference.schemas import DOCUMENTS, SCHEMAS, with_settings


def main() -> None:
    """Write the pages and the schemas."""
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(make(), encoding="utf-8")
    for name in DOCUMENTS:
        (SCHEMAS / name).write_text(with_settings(name), encoding="utf-8")


if __name__ == "__main__":
    main()
