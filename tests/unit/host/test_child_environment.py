"""No child process inherits a secret."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import potluck
from potluck.host.child import ChildAnswer, run_child
from potluck.host.child_environment import SECRET_VARIABLE, child_environment

SOURCE = Path(potluck.__file__).parent
STARTERS = frozenset(
    {
        "Popen",
        "call",
        "check_call",
        "check_output",
        "create_subprocess_exec",
        "create_subprocess_shell",
        "fork",
        "forkpty",
        "getoutput",
        "popen",
        "posix_spawn",
        "posix_spawnp",
        "run",
        "spawnv",
        "spawnve",
        "system",
    }
)
MODULES = frozenset({"os", "subprocess", "asyncio", "multiprocessing"})
NO_PROCESS = frozenset({("asyncio", "run")})
FORKS = frozenset({Path("host/supervisor.py")})
"""Processes that were themselves started with a child's environment, which a fork shares."""


def starts() -> Iterator[tuple[Path, ast.Call]]:
    """Every call that starts a process."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = node.func.value
            if not isinstance(owner, ast.Name) or owner.id not in MODULES:
                continue
            if node.func.attr == "fork" and path.relative_to(SOURCE) in FORKS:
                continue
            if node.func.attr in STARTERS and (owner.id, node.func.attr) not in NO_PROCESS:
                yield path, node


@pytest.mark.slow
def test_every_process_is_started_with_an_environment_of_its_own() -> None:
    found = list(starts())
    assert len(found) >= 4
    for path, call in found:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        where = f"{path}:{call.lineno}"
        assert "environment" in given.get("env", "") or "_with_this_package" in given["env"], where


def test_secrets_are_held_back_and_the_rest_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {SECRET_VARIABLE: "s", "HF_TOKEN": "t", "HUGGING_FACE_HUB_TOKEN": "t", "PATH": "/bin"}
    assert child_environment(given) == {"PATH": "/bin"}
    assert SECRET_VARIABLE not in child_environment(given, may_fetch=True)
    assert child_environment(given, may_fetch=True)["HF_TOKEN"] == "t"
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    assert SECRET_VARIABLE not in child_environment()


def test_a_child_that_loads_drivers_sees_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shows_environment.py").write_text(
        "import json, os; print(json.dumps({'names': list(os.environ)}))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OTHER", "x")
    monkeypatch.setenv(SECRET_VARIABLE, "s")
    monkeypatch.setenv("HF_TOKEN", "t")
    given = {"PYTHONPATH": str(tmp_path), "OTHER": "x", SECRET_VARIABLE: "s", "HF_TOKEN": "t"}
    for environment in (None, given):
        outcome = run_child(
            "shows_environment",
            deadline_seconds=30,
            max_resident_bytes=2**30,
            environment=environment,
        )
        assert isinstance(outcome, ChildAnswer), outcome
        names = outcome.document["names"]
        assert isinstance(names, list)
        assert "OTHER" in names
        assert not {SECRET_VARIABLE, "HF_TOKEN"} & set(names)
