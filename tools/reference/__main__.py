"""Writes every generated page and schema of ``docs/reference``: ``python -m tools.reference``."""

from __future__ import annotations

from tools.reference.pages import DIRECTORY, PAGES
from tools.reference.schemas import DOCUMENTS, SCHEMAS, schema_text


def main() -> None:
    """Write the pages and the schemas."""
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(make(), encoding="utf-8")
    for name, kind in DOCUMENTS.items():
        (SCHEMAS / f"{name}.json").write_text(schema_text(kind), encoding="utf-8")


if __name__ == "__main__":
    main()
