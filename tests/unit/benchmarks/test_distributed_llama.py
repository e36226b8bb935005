"""Which build of distributed-llama was measured."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from distributed_llama import build_of


def checkout(directory: Path, *, source: str) -> Path:
    """Make a tagged checkout that contains ``source``, and return the program built there."""

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(directory), *identity, *arguments]
        subprocess.run(command, check=True, capture_output=True)

    file = directory / source
    file.parent.mkdir(parents=True)
    file.touch()
    git("init", "--quiet")
    git("add", source)
    git("commit", "--quiet", "--message", "first")
    git("tag", "v0.16.0")
    program = directory / "dllama"
    program.write_bytes(b"program")
    return program


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    build = build_of(checkout(tmp_path, source="src/dllama.cpp"))
    assert len(build.commit) == 40
    assert build.version == "v0.16.0"
    assert build.sha256 == hashlib.sha256(b"program").hexdigest()


def test_a_commit_that_is_given_counts(tmp_path: Path) -> None:
    build = build_of(checkout(tmp_path, source="src/dllama.cpp"), "a1b2c3d")
    assert (build.commit, build.version) == ("a1b2c3d", "")


def test_the_checkout_of_another_project_says_nothing(tmp_path: Path) -> None:
    program = checkout(tmp_path, source="src/other.cpp")
    with pytest.raises(ValueError, match=r"the commit of .*dllama is not known: .*dllama\.cpp"):
        build_of(program)
    assert build_of(program, "a1b2c3d").commit == "a1b2c3d"


def test_a_program_outside_of_any_checkout(tmp_path: Path) -> None:
    program = tmp_path / "dllama"
    program.touch()
    with pytest.raises(ValueError, match="not known"):
        build_of(program)
