"""``potluck run demo`` from our wheel and its dependencies' says what it says here."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support.kernels.build import ROOT
from support.portability.own_wheels import own_wheel
from support.portability.roots import require_packages, require_root, root_python
from support.portability.wheel_build import BUILD_SECONDS
from support.processes.command import run_command

pytestmark = pytest.mark.timeout(BUILD_SECONDS)

ARGUMENTS = ("run", "demo", "-p", "The fox", "-n", "24", "--temperature", "0")


@pytest.fixture(scope="module")
def text_here() -> str:
    done = run_command(*ARGUMENTS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "machine", "glibc_minor", "version"),
    [("bookworm-amd64", "x86_64", 36, "3.11"), ("bookworm-arm64", "aarch64", 36, "3.11")],
)
def test_the_text_is_the_same(
    name: str, machine: str, glibc_minor: int, version: str, text_here: str, tmp_path: Path
) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    needed = require_packages(machine, glibc_minor, version, *project["dependencies"])
    own = own_wheel(machine, version, tmp_path)
    python = root_python(require_root(name), version, own=own, needed=needed)
    done = python.run("-m", "potluck", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    assert done.stdout == text_here
