"""A test is skipped only where nothing that it depends on has changed since it passed."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.recorded import groups, plugin
from support.recorded.record import (
    PROVES,
    Group,
    Record,
    imported_files,
    read_proofs,
    rooms_up_to,
    this_machine,
)

from potluck.kernels import available_isas

ROOT = Path(__file__).parents[3]
GROUP = Group(name="group", modules=("test_a.py", "test_b.py"), inputs=("folder", "file.toml"))
TESTS = {"test_a.py": ["a::one", "a::two"], "test_b.py": ["b::one"]}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "folder/inner").mkdir(parents=True)
    (tmp_path / "folder/inner/source.py").write_text("1")
    (tmp_path / "file.toml").write_text("2")
    return tmp_path


def record(root: Path, machine: str = "this") -> Record:
    return Record(root / "proof.json", root, [GROUP], lambda _: machine)


def prove(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    *failing: str,
    machine: str = "this",
    modules: Iterable[str] = TESTS,
    imported: Iterable[str] = (),
) -> list[str]:
    """Run the tests of some modules, which pass but ``failing``; return what is not recorded."""
    with monkeypatch.context() as patch:
        patch.setenv(PROVES, "1")
        made = record(root, machine)
        for module, tests in ((module, TESTS[module]) for module in modules):
            assert made.reason_to_skip(module, tests) is None
            for test in tests:
                made.note(module, test, has_passed=True)
                made.note(module, test, has_passed=test not in failing)
        return made.write(imported)


def skips(root: Path, machine: str = "this") -> list[bool]:
    made = record(root, machine)
    return [made.reason_to_skip(module, tests) is not None for module, tests in TESTS.items()]


def test_what_passed_is_skipped_until_an_input_changes(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert skips(root) == [False, False]
    assert prove(root, monkeypatch) == []
    assert skips(root) == [True, True]
    (root / "folder/inner/source.py").write_text("3")
    assert skips(root) == [False, False]
    (root / "folder/inner/source.py").write_text("1")
    assert skips(root) == [True, True]
    (root / "folder/new.py").touch()
    assert skips(root) == [False, False]


def test_a_compiled_file_is_no_input(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(root, monkeypatch)
    (root / "folder/__pycache__").mkdir()
    (root / "folder/__pycache__/source.txt").touch()
    (root / "folder/core.so").touch()
    assert skips(root) == [True, True]


def test_another_machine_shows_it_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(root, monkeypatch)
    assert skips(root, "another") == [False, False]


def test_machines_that_showed_the_same_are_all_on_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(root, monkeypatch)
    prove(root, monkeypatch, machine="another")
    assert skips(root) == skips(root, "another") == [True, True]
    (root / "file.toml").write_text("3")
    prove(root, monkeypatch, machine="another")
    assert skips(root, "another") == [True, True]
    assert skips(root) == [False, False]


def test_a_run_of_another_group_at_the_same_time_is_not_overwritten(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Group(name="other", modules=("test_c.py",), inputs=("file.toml",))
    path = root / "proof.json"
    with monkeypatch.context() as patch:
        patch.setenv(PROVES, "1")
        runs = [Record(path, root, [GROUP, other], lambda _: "this") for _ in range(2)]
        for run, modules in zip(runs, [{"test_c.py": ["c::one"]}, TESTS], strict=True):
            for module, tests in modules.items():
                run.reason_to_skip(module, tests)
                for test in tests:
                    run.note(module, test, has_passed=True)
        assert [run.write() for run in runs] == [[], []]
    assert set(read_proofs(path)) == {"group", "other"}


def test_another_version_of_a_package_shows_it_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = replace(GROUP, packages=("numpy",))
    before = group.digest(root)
    assert before == group.digest(root)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"another of {name}")
    assert group.digest(root) != before


def test_a_new_test_runs_with_those_of_its_module(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(root, monkeypatch)
    assert record(root).reason_to_skip("test_a.py", [*TESTS["test_a.py"], "a::new"]) is None


def test_a_part_that_failed_leaves_the_record_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prove(root, monkeypatch, "b::one") == ["group: b::one did not pass"]
    assert skips(root) == [False, False]


def test_a_part_of_the_modules_is_no_proof(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = prove(root, monkeypatch, modules=["test_a.py"])
    assert left == ["group: test_b.py did not run"]
    assert skips(root) == [False, False]


def test_what_is_imported_has_to_be_an_input(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_all = ["tests/conftest.py", "tests/support/recorded/plugin.py"]
    left = prove(root, monkeypatch, imported=[*of_all, "folder/inner/source.py", "other/a.py"])
    assert left == ["group: its inputs lack other/a.py, imported by its tests"]
    assert skips(root) == [False, False]
    assert prove(root, monkeypatch, imported=[*of_all, "folder/inner/source.py"]) == []
    assert skips(root) == [True, True]


def test_the_modules_of_this_process_are_seen() -> None:
    assert Path(__file__).relative_to(ROOT).as_posix() in imported_files(ROOT)
    assert "src/potluck/kernels/__init__.py" in imported_files(ROOT)


def test_groups_may_be_shown_on_any_cpu() -> None:
    anywhere = replace(GROUP, is_for_any_cpu=True)
    assert "any CPU" in this_machine(anywhere)
    assert available_isas()[0] in this_machine(GROUP)


@pytest.mark.parametrize("is_requested", [False, True])
def test_modules_on_record_are_not_imported_where_that_is_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch, is_requested: bool
) -> None:
    prove(root, monkeypatch)
    config: Any = SimpleNamespace(stash=pytest.Stash(), getoption=lambda _: is_requested)
    lines: list[str] = []

    def left_out() -> list[str]:
        names = ("test_a.py", "test_b.py", "test_c.py", "folder")
        with monkeypatch.context() as patch:  # this run of pytest has the plugin too
            patch.setattr(plugin, "ROOT", root)
            patch.setattr(plugin, "Record", lambda *_: record(root))
            plugin.pytest_configure(config)
            return [name for name in names if plugin.pytest_ignore_collect(root / name, config)]

    assert left_out() == (["test_a.py", "test_b.py"] if is_requested else [])
    plugin.pytest_terminal_summary(cast(Any, SimpleNamespace(write_line=lines.append)), config)
    assert lines == (["on record: 2 modules (tests/proof.json)"] if is_requested else [])
    (root / "file.toml").write_text("3")
    assert left_out() == []


def test_the_makefile_can_ask_what_is_on_record(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove(root, monkeypatch)
    monkeypatch.setattr(groups, "GROUPS", (GROUP,))
    monkeypatch.setattr(groups, "Record", lambda *_: record(root))
    monkeypatch.setattr("sys.argv", ["groups", "--on-record", "group"])
    assert groups.main() == 0
    (root / "file.toml").write_text("3")
    assert groups.main() == 1


def test_modules_of_no_group_always_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prove(root, monkeypatch)
    assert record(root).reason_to_skip("test_c.py", []) is None


def test_an_input_that_does_not_exist_is_an_error(root: Path) -> None:
    (root / "file.toml").unlink()
    with pytest.raises(FileNotFoundError, match="group depends on file"):
        record(root).reason_to_skip("test_a.py", TESTS["test_a.py"])


def test_rooms_are_those_that_the_layers_let_it_import() -> None:
    rooms = rooms_up_to("portability", ROOT)
    assert {"src/potluck/portability", "src/potluck/types", "src/potluck/errors.py"} <= set(rooms)
    assert not {"src/potluck/kernels", "src/potluck/engines", "src/potluck/cli"} & set(rooms)
    assert all((ROOT / path).exists() for path in rooms)
