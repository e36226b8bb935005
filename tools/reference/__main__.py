"""Writes every generated page of ``docs/reference``: ``python -m tools.reference``."""

from __future__ import annotations

from tools.reference.pages import DIRECTORY, PAGES


def main() -> None:
    """Write the pages."""
    for name, make in PAGES.items():
        (DIRECTORY / name).write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
