"""Growth of a package needs a reason, and the table follows the code down."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools import size_budget
from tools.size_budget import STRUCTURE, Change, Row, changes, package_sizes, read_table, updated

SMALL = {"lines": 100, "files": 5, "names": 10}
LARGE = {"lines": 10_000, "files": 100, "names": 500}
SHAPE = {"import_chain": 30, "class_methods": 40, "struct_fields": 20}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_lines_files_and_public_names_are_counted_by_package(tmp_path: Path) -> None:
    source = tmp_path / "src" / "potluck"
    write(source / "errors.py", "class Error(Exception): ...\n")
    write(
        source / "api" / "core" / "one.py",
        "import os\nA, _B = 1, 2\nC: int\n\ndef f():\n    def g(): ...\n\nasync def _h(): ...\n",
    )
    write(source / "api" / "page.js", "let x;\n")
    write(source / "api" / "data.json", "{}\n")
    write(source / "cluster" / "agent" / "core" / "two.py", "x = y = 1\n")
    write(tmp_path / "cpp" / "core.cc", "int x;\n\n")
    assert package_sizes(tmp_path) == {
        "cpp": {"lines": 2, "files": 1, "names": 0},
        "potluck": {"lines": 1, "files": 1, "names": 1},
        "potluck.api": {"lines": 9, "files": 2, "names": 3},
        "potluck.cluster.agent": {"lines": 1, "files": 1, "names": 2},
    }


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (SMALL, SMALL, None),
        (SMALL, {**SMALL, "lines": 120, "names": 12}, None),
        (LARGE, {**LARGE, "lines": 10_200, "files": 102, "names": 510}, None),
        (SMALL, {**SMALL, "lines": 121}, "x has grown: lines by 21 (21.0%)"),
        (SMALL, {**SMALL, "files": 6}, "x has grown: files by 1 (20.0%)"),
        (SMALL, {**SMALL, "names": 13}, "x has grown: names by 3 (30.0%)"),
        (LARGE, {**LARGE, "lines": 10_201}, "x has grown: lines by 201 (2.0%)"),
        (LARGE, {**LARGE, "lines": 9_000, "names": 511}, "x has grown: names by 11 (2.2%)"),
        (LARGE, {**LARGE, "lines": 9_799}, "x has shrunk: lines by 201 (2.0%)"),
        (SHAPE, {**SHAPE, "class_methods": 41}, "x has grown: class_methods by 1 (2.5%)"),
        (SHAPE, {**SHAPE, "import_chain": 29}, "x has shrunk: import_chain by 1 (3.3%)"),
    ],
)
def test_small_changes_need_no_reason(
    before: Mapping[str, int], after: Mapping[str, int], text: str | None
) -> None:
    found = changes({"x": after}, {"x": Row(counts=before)})
    expected = {} if text is None else {"x": Change(text=text, is_growth="grown" in text)}
    assert found == expected


def test_new_packages_need_a_reason_and_those_that_are_gone_none() -> None:
    found = changes({"new": SMALL}, {"old": Row(counts=SMALL, reason="because")})
    assert found == {
        "new": Change(text="new is new", is_growth=True),
        "old": Change(text="old is gone", is_growth=False),
    }


def test_only_rows_that_changed_are_written() -> None:
    less = {**LARGE, "lines": 9_000}
    more = {**LARGE, "lines": 11_000}
    near = {**LARGE, "lines": 10_001}
    table = {name: Row(counts=LARGE, reason=f"old {name}") for name in ("less", "more", "near")}
    now = {"less": less, "more": more, "near": near}
    assert updated(now, table, changes(now, table), "new") == {
        "less": Row(counts=less),
        "more": Row(counts=more, reason="new"),
        "near": Row(counts=LARGE, reason="old near"),
    }


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "table.toml"
    monkeypatch.setattr(size_budget, "TABLE", path)
    monkeypatch.setattr(size_budget, "package_sizes", lambda root: {"potluck.x": LARGE})
    monkeypatch.setattr(size_budget, "structure", lambda source: (SHAPE, "the largest"))
    return path


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["size_budget", *arguments])
    return size_budget.main()


def test_the_command_fails_until_the_reason_is_written(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch) == 1
    assert run(monkeypatch, "--write") == 1
    assert not table.exists()
    assert run(monkeypatch, "--write", 'it does "more"') == 0
    assert read_table(table) == {
        "potluck.x": Row(counts=LARGE, reason='it does "more"'),
        STRUCTURE: Row(counts=SHAPE, reason='it does "more"'),
    }
    assert run(monkeypatch) == 0
    capsys.readouterr()
    less = {**LARGE, "names": 400}
    monkeypatch.setattr(size_budget, "package_sizes", lambda root: {"potluck.x": less})
    assert run(monkeypatch) == 1
    captured = capsys.readouterr()
    assert "400 (-100)" in captured.out
    assert "potluck.x has shrunk: names by 100" in captured.err
    assert run(monkeypatch, "--write") == 0
    assert read_table(table)["potluck.x"] == Row(counts=less)


def test_the_structure_of_a_package_is_its_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "measured_package"
    write(package / "__init__.py", "")
    write(package / "one.py", "from measured_package import two\n")
    write(package / "two.py", "def f():\n    import measured_package.three\n")
    write(
        package / "three.py",
        "from dataclasses import dataclass\nimport msgspec\n"
        "class Busy:\n    def a(self): ...\n    def b(self): ...\n    async def c(self): ...\n"
        "@dataclass(frozen=True)\nclass Two:\n    x: int\n    y: int\n"
        "class One(msgspec.Struct):\n    z: int\n"
        "class Free:\n    a: int\n    b: int\n    c: int\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    counts, largest = size_budget.structure(package)
    assert counts == {
        "import_chain": 3,
        "small_modules": 2,
        "class_methods": 3,
        "struct_fields": 2,
    }
    assert "three.py:Busy" in largest
    assert "three.py:Two" in largest
    assert "(three, two)" in largest
