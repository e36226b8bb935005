"""What fails a run of the gate, shown by small groups that pytest really runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tools import gate

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
FLAKY = """
from pathlib import Path
def test_is_flaky():
    ran = Path(__file__).with_suffix(".ran")
    has_run = ran.exists()
    ran.touch()
    assert has_run
"""
INTERRUPTED = "import pytest\ndef test_stops(): pytest.exit('no more', returncode=2)\n"


@pytest.fixture(autouse=True)
def _work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    monkeypatch.setattr(gate, "WORK", tmp_path / "work")


def a_group(folder: Path, name: str, *tests: str) -> gate.Group:
    (folder / name).mkdir()
    for number, test in enumerate(tests):
        (folder / name / f"test_{number}.py").write_text(test)
    return gate.Group(name=name, paths=(str(folder / name),))


def test_all_groups_run_and_failures_are_confirmed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    groups = [
        a_group(tmp_path, "first", FAILS, FLAKY, PASSES),
        a_group(tmp_path, "second", PASSES),
    ]
    assert gate.run(groups) == 1
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("second: exit 0") for line in lines)
    assert [line.split("::")[1] for line in lines if line.startswith("FLAKY")] == ["test_is_flaky"]
    assert [line.split("::")[1] for line in lines if line.startswith("FAILED TWICE")] == [
        "test_fails"
    ]
    assert lines[-1] == "1 failed, 1 flaky"
    report = json.loads((gate.WORK / "report.json").read_text())
    assert [(each["name"], each["exit"]) for each in report["groups"]] == [
        ("first", 1),
        ("second", 0),
    ]
    assert len(report["failed"]) == len(report["flaky"]) == 1


@pytest.mark.parametrize(("num_flaky", "code"), [(gate.MOST_FLAKY, 0), (gate.MOST_FLAKY + 1, 1)])
def test_few_flaky_tests_fail_no_run(tmp_path: Path, num_flaky: int, code: int) -> None:
    assert gate.run([a_group(tmp_path, "group", *[FLAKY] * num_flaky)]) == code


def test_a_failure_is_confirmed_in_a_group_that_names_its_tests(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = a_group(tmp_path, "group", FLAKY, PASSES)
    (folder,) = whole.paths
    named = (f"{folder}/test_0.py::test_is_flaky", f"{folder}/test_1.py::test_passes")
    assert gate.run([dataclasses.replace(whole, paths=named)]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "0 failed, 1 flaky"


@pytest.mark.parametrize("before", [[], [FLAKY]], ids=["nothing failed", "a flaky one failed"])
def test_a_group_that_does_not_run_to_its_end_fails_the_run(
    tmp_path: Path, before: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert gate.run([a_group(tmp_path, "group", *before, INTERRUPTED, PASSES)]) == 1
    assert "FAILED group: pytest ended with exit code 2" in capfd.readouterr().out


def test_a_group_without_tests_fails_the_run(tmp_path: Path) -> None:
    assert gate.run([a_group(tmp_path, "group")]) == 1
