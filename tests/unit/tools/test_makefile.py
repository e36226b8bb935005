"""``make test`` runs every tier, and ``make test-all`` every test."""

from __future__ import annotations

from pathlib import Path

from tools.gate import EVERYTHING, GATE

ROOT = Path(__file__).parents[3]


def test_the_gate_has_every_folder_with_tests() -> None:
    named = {"/".join(path.split("/")[:2]) for group in GATE for path in group.paths}
    there = {
        f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
        for path in (ROOT / "tests").rglob("test_*.py")
    }
    assert named == there
    assert named < {path for group in EVERYTHING for path in group.paths}


def test_what_the_gate_names_exists() -> None:
    options = [option for group in GATE for option in group.options]
    ignored = [option.removeprefix("--ignore=") for option in options if "=" in option]
    for name in [*ignored, *(path for group in GATE for path in group.paths)]:
        path, _, test = name.partition("[")[0].partition("::")
        assert (ROOT / path).exists(), name
        if test:
            assert f"def {test}(" in (ROOT / path).read_text("utf-8"), name
