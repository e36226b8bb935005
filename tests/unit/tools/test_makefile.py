"""``make test`` runs every tier."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_make_test_names_every_folder_with_tests() -> None:
    commands = re.findall(r"\$\(PYTEST\)(.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    named = {word for command in commands for word in command.split() if word.startswith("tests/")}
    there = {
        f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert named == there
